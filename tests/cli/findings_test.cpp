// The page of findings: its tables' rows by hand, its pictures, and what happens where it is
// written.
#include <gmock/gmock.h>

#include <filesystem>

#include "apps/cli/experiment/findings.h"
#include "apps/cli/experiment/findings_tables.h"
#include "tests/cli/findings_files.h"

namespace reprise::app {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// The cells of the first row that begins with the name.
std::vector<std::string> findings_row(const std::string& text, const std::string& name) {
  std::vector<std::string> cells;
  const auto begin = text.find("| " + name + " ");
  if (begin == text.npos) return cells;
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  for (std::size_t at = 1; at < line.size();) {
    const auto end = line.find('|', at);
    const std::string cell = line.substr(at, end - at);
    const auto first = cell.find_first_not_of(' ');
    cells.push_back(cell.substr(first, cell.find_last_not_of(' ') + 1 - first));
    at = end + 1;
  }
  return cells;
}

// Two methods and one that failed, with two seeds.
void write_small_experiment(const TemporaryFolder& folder) {
  write_settings(folder);
  write_run(folder, "none", 1, {10, 12, 11});
  write_run(folder, "none", 2, {21, 20, 22});
  write_run(folder, "uniform", 1, {20, 22, 22}, 0.25, {{"energy_joules", 7.2e6}});
  write_run(folder, "uniform", 2, {42, 40, 42}, 0.25, {{"validation_loss", 2.5}});
  for (const int seed : {1, 2}) {
    write_lines(folder, path_of_run("pgac:influence", seed),
                {made_header("pgac:influence", seed, 3), made_pgac_step(1, "11"),
                 made_pgac_step(2, seed == 1 ? "10" : "00"), made_pgac_step(3, "01"), made_end()});
  }
  const nlohmann::json end = made_end({{"validation_loss", nullptr}, {"failure", "too | small"}});
  write_lines(folder, path_of_run("dtr", 1), {made_header("dtr", 1, 3), end});
}

TEST(FindingsTables, HaveTheFiguresThatComeOutByHand) {
  const TemporaryFolder folder;
  write_small_experiment(folder);
  const MethodTables tables = method_tables(read_runs(folder.path()), "gpt2");
  const std::vector<std::string> none = findings_row(tables.cost, "`none`");
  ASSERT_EQ(none.size(), 13U);
  EXPECT_EQ(none[1], "0.0030");  // 3003 bytes
  EXPECT_EQ(none[2], "1.000");
  EXPECT_EQ(none[4], "yes");
  // The mean of 11 and 21; 12.706 times their standard error, which is 5.
  EXPECT_EQ(none[5], "16.00 (-47.53–79.53)");
  EXPECT_EQ(none[6], "1");
  EXPECT_EQ(none[8], "–");
  EXPECT_EQ(none[9], "0 %");
  EXPECT_EQ(none[11], "–");
  EXPECT_EQ(none[12], "not available");
  const std::vector<std::string> uniform = findings_row(tables.cost, "`uniform`");
  EXPECT_EQ(uniform[6], "2.000 (2.000–2.000)");
  EXPECT_EQ(uniform[7], "–");
  EXPECT_EQ(uniform[9], "25.0 % (25.0 to 25.0)");
  EXPECT_EQ(uniform[12], "2.000");
  const std::vector<std::string> ours = findings_row(tables.cost, "`pgac:influence`");
  // Three entries change with the first seed, and three with the second.
  EXPECT_EQ(ours[11], "3.000");
  EXPECT_EQ(ours[10], "10000 (10000–10000)");
  const std::vector<std::string> failed = findings_row(tables.cost, "`dtr`");
  EXPECT_THAT(std::vector(failed.begin() + 1, failed.end()), testing::Each("–"));
}

TEST(FindingsTables, CorrectTheirTestsTogether) {
  const TemporaryFolder folder;
  write_small_experiment(folder);
  const MethodTables tables = method_tables(read_runs(folder.path()), "gpt2");
  // Made are: uniform and pgac beside none and each other in time (of twice the same quotient
  // nothing is left to chance), and in loss uniform's 0 and 0.5 beside the others' (t is 1, so that
  // p is 1/2, before and after correction at most 1).
  EXPECT_EQ(findings_row(tables.cost, "`uniform`")[8], "< 0.001");
  const std::vector<std::string> uniform = findings_row(tables.quality, "`uniform`");
  EXPECT_EQ(uniform[2], "2.250 (-0.927–5.427)");
  EXPECT_EQ(uniform[3], "–");
  EXPECT_EQ(uniform[4], "1.000");
  EXPECT_EQ(uniform[5], "0 of 6");
  // Where losses are the same there is no test.
  EXPECT_EQ(findings_row(tables.quality, "`pgac:influence`")[4], "–");
  // Nothing is lossy, and there is neither perplexity nor accuracy.
  EXPECT_THAT(tables.quality, Not(HasSubstr("error of gradients")));
  EXPECT_THAT(tables.quality, Not(HasSubstr("perplexity")));
}

TEST(FindingsTables, SayHowManyStepsWereOverTheBudget) {
  const TemporaryFolder folder;
  write_settings(folder);
  nlohmann::json header = made_header("uniform", 1, 2);
  header["budget_bytes"] = 3001;
  write_lines(folder, path_of_run("uniform", 1),
              {header, made_step(1, 1), made_step(2, 1), made_end()});
  const MethodTables tables = method_tables(read_runs(folder.path()), "gpt2");
  EXPECT_EQ(findings_row(tables.cost, "`uniform`")[4], "no: 1 of 2 steps above");
}

TEST(FindingsTables, ShowAblationsBelowTheirMethod) {
  const TemporaryFolder folder;
  write_settings(folder);
  write_run(folder, "none", 1, {10});
  write_run(folder, "pgac:influence", 1, {20});
  EXPECT_EQ(ablation_table(read_runs(folder.path()), "gpt2"), "");
  write_run(folder, "pgac:influence,q=0.25", 1, {30}, 0.1);
  const Runs runs = read_runs(folder.path());
  const std::string table = ablation_table(runs, "gpt2");
  EXPECT_EQ(findings_row(table, "`pgac:influence`")[3], "1");
  const std::vector<std::string> varied = findings_row(table, "`pgac:influence,q=0.25`");
  EXPECT_EQ(varied[2], "30.00");
  EXPECT_EQ(varied[3], "1.500");
  EXPECT_EQ(varied[4], "10.0 %");
  EXPECT_THAT(method_tables(runs, "gpt2").cost, Not(HasSubstr("q=0.25")));
}

TEST(FindingsPage, NamesCommandMachineAndDateAndIsTheSameEachTime) {
  const TemporaryFolder folder;
  write_small_experiment(folder);
  write_lines(folder, path_of_run("none", 3), {made_header("none", 3, 3)});
  write_findings(folder.path(), folder / "page.md", "--report");
  const std::string page = contents(folder / "page.md");
  EXPECT_THAT(page, HasSubstr("`reprise experiment pgac`, 2026-11-23: a CPU. 7 runs."));
  EXPECT_THAT(page, HasSubstr("- data of gpt2: some text\n"));
  EXPECT_THAT(page, HasSubstr("Exact methods, ablations among them: 0 of 12 steps"));
  EXPECT_THAT(page, HasSubstr("- gpt2, `dtr`, seed 1, after 0 steps: too | small\n"));
  EXPECT_THAT(page, HasSubstr("1 run(s) were cut before their end"));
  EXPECT_THAT(page, HasSubstr("### `pgac:influence`\n\n| expectation "));
  // In other text than tables, lines are those of a page.
  EXPECT_THAT(page, HasSubstr("with its\n95 % interval"));
  const std::string picture = contents(folder / "page-pictures/gpt2-loss.svg");
  write_findings(folder.path(), folder / "page.md", "--report");
  EXPECT_EQ(contents(folder / "page.md"), page);
  EXPECT_EQ(contents(folder / "page-pictures/gpt2-loss.svg"), picture);
}

TEST(FindingsPage, LinksToPicturesThatAreThere) {
  const TemporaryFolder folder;
  write_small_experiment(folder);
  write_findings(folder.path(), folder / "page.md", "--report");
  const std::string page = contents(folder / "page.md");
  std::size_t links = 0;
  for (auto at = page.find("](<"); at != page.npos; at = page.find("](<", at + 1)) {
    const std::string target = page.substr(at + 3, page.find(">)", at) - at - 3);
    EXPECT_THAT(contents(folder / target), HasSubstr("</svg>")) << target;
    ++links;
  }
  EXPECT_EQ(links, 4U);
  // Curves that are the same are one, and named.
  EXPECT_THAT(page, HasSubstr("training loss; the same for none, uniform, pgac:influence]"));
  EXPECT_THAT(contents(folder / "page-pictures/gpt2-loss.svg"),
              HasSubstr("none and 2 with the same"));
  const std::string frontier = contents(folder / "page-pictures/gpt2-frontier.svg");
  EXPECT_THAT(frontier, HasSubstr("<title>uniform: 0.003003 (0.003003 to 0.003003), 2 (2 to 2)"));
  const std::string mask = contents(folder / "page-pictures/gpt2-pgac-influence-mask.svg");
  EXPECT_THAT(mask, HasSubstr("block1"));
}

TEST(FindingsPage, OfRunsWithoutFiguresHasNoPictures) {
  const TemporaryFolder folder;
  write_settings(folder);
  write_lines(folder, path_of_run("none", 1),
              {made_header("none", 1, 2), made_end({{"failure", "no memory"}})});
  write_findings(folder.path(), folder / "page.md", "--report");
  EXPECT_THAT(contents(folder / "page.md"), HasSubstr("after 0 steps: no memory"));
  EXPECT_THAT(contents(folder / "page.md"), Not(HasSubstr("![")));
  EXPECT_FALSE(fs::exists(folder / "page-pictures"));
}

TEST(FindingsPage, IsRefusedWithoutRunsAndWhereItCannotBeWritten) {
  const TemporaryFolder folder;
  write_settings(folder);
  write_file(folder / "page.md", "before");
  const auto refusal = [&](const fs::path& page) {
    return refusal_of([&] { write_findings(folder.path(), page, "--report"); });
  };
  write_lines(folder, path_of_run("none", 3), {made_header("none", 3, 3)});
  EXPECT_THAT(refusal(folder / "page.md"), HasSubstr("has no complete run (1 were cut)"));
  write_run(folder, "none", 1, {1});
  write_run(folder, "none", 2, {1});
  EXPECT_THAT(refusal(folder / "nowhere/page.md"), HasSubstr("--report"));
  write_file(folder / "page-pictures", "in the way");
  EXPECT_THAT(refusal(folder / "page.md"), HasSubstr("--report: cannot make the folder"));
  EXPECT_EQ(contents(folder / "page.md"), "before");
}

}  // namespace
}  // namespace reprise::app
