// An experiment's folder: whose it is, who works in it, and what of a run can be gone on with.
#include <gmock/gmock.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "apps/cli/experiment/experiment_file.h"
#include "apps/cli/experiment/findings_runs.h"
#include "apps/cli/experiment/folder_lock.h"
#include "apps/cli/experiment/run.h"
#include "apps/cli/experiment/run_lines.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::HasSubstr;

// A GPT of one layer, two steps under `none`.
class ExperimentFolder : public testing::Test {
 protected:
  ExperimentFolder() { write_text("a line of text\n"); }

  void write_text(const std::string& line) const {
    std::string text;
    for (int i = 0; i < 60; ++i) text += line;
    write_file(folder_ / "text.txt", text);
  }
  Arguments command(const std::string& more, const std::string& out = "out") const {
    Arguments line = words(
        "experiment pgac --models gpt2 --methods none --no-ablations --width 8 --heads 2 --context "
        "16 --steps 2 --seeds 2 " +
        more);
    line.insert(line.end(), {"--text", folder_ / "text.txt", "--out", folder_ / out});
    return line;
  }
  void run(const Arguments& line) const {
    const Finished result = run_here(line);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  // As of the command with six steps, for runs that are left.
  ExperimentSettings settings_by_hand() const {
    ExperimentSettings settings;
    settings.name = "pgac";
    settings.out = folder_ / "by_hand";
    settings.models = {"gpt2"};
    settings.text = {folder_ / "text.txt"};
    settings.steps = 6;
    settings.layers = 1;
    settings.width = 8;
    settings.heads = 2;
    settings.context = 16;
    complete(settings);
    return settings;
  }

  TemporaryFolder folder_;
};

TEST_F(ExperimentFolder, IsOfAnotherExperimentWhicheverOfTheTwoHasASetting) {
  run(command("--layers 1", "with"));
  expect_refusal(command("", "with"),
                 "is of another experiment: its layers is 1, and here not given; give its options");
  fs::remove_all(folder_ / "with/runs");
  expect_refusal(command("--layers 1 --batch 2", "with"), "its batch is not given, and here 2");
  // What is told or measured is no setting.
  run(command("--layers 1", "with"));
}

// Settings as of a command line, with what is empty filled in.
nlohmann::ordered_json decided_by(const std::string& more) {
  CLI::App app;
  ExperimentSettings settings;
  bind(app, settings);
  std::vector<std::string> line =
      words("pgac --out x --models bert --labelled a.tsv --device cpu " + more);
  std::ranges::reverse(line);
  app.parse(line);
  complete(settings);
  return deciding(settings);
}

TEST(ExperimentSettings, EveryOptionDecidesOrIsKnownNotTo) {
  const std::map<std::string, std::string> values = {{"--models", "gpt2"},
                                                     {"--methods", "none"},
                                                     {"--ablation", "pgac:text,q=0.1"},
                                                     {"--no-ablations", ""},
                                                     {"--seeds", "5"},
                                                     {"--steps", "7"},
                                                     {"--budget", "0.5"},
                                                     {"--gradient-error", "0.5"},
                                                     {"--learning-rate", "0.5"},
                                                     {"--quick", ""},
                                                     {"--full-size", ""},
                                                     {"--text", "b.txt"},
                                                     {"--labelled", "b.tsv"},
                                                     {"--text-column", "x"},
                                                     {"--second-column", "x"},
                                                     {"--label-column", "x"},
                                                     {"--images", "digits.csv"},
                                                     {"--batch", "2"},
                                                     {"--layers", "2"},
                                                     {"--width", "2"},
                                                     {"--heads", "2"},
                                                     {"--context", "9"},
                                                     {"--image", "4"},
                                                     {"--patch", "2"},
                                                     {"--dropout", "0.5"},
                                                     {"--threads", "2"}};
  const nlohmann::ordered_json base = decided_by("");
  std::set<std::string> known = {"--help", "name",         "--out",   "--report",
                                 "--json", "--save-every", "--device"};
  for (const auto& [option, value] : values) {
    EXPECT_NE(decided_by(option + " " + value), base) << option;
    known.insert(option);
  }
  // Not every machine has two.
  EXPECT_EQ(base.at("device"), "cpu");
  CLI::App app;
  ExperimentSettings settings;
  bind(app, settings);
  for (const CLI::Option* option : app.get_options()) {
    EXPECT_TRUE(known.contains(option->get_name())) << option->get_name();
  }
}

TEST_F(ExperimentFolder, GoesOnWithTheSameDataAlone) {
  run(command("--layers 1"));
  write_text("other lines now\n");
  // All runs are there: nothing is trained.
  run(command("--layers 1"));
  fs::remove(folder_ / "out/runs/gpt2/none/2.jsonl");
  expect_refusal(command("--layers 1"), "the data of gpt2 is not what it was when");
  write_text("a line of text\n");
  run(command("--layers 1"));
  EXPECT_EQ(read_runs(folder_ / "out").runs.size(), 2U);
}

TEST_F(ExperimentFolder, AFileWithoutWhatWasMeasuredIsRefused) {
  run(command("--layers 1"));
  const std::string file = folder_ / "out/experiment.json";
  const auto json = nlohmann::ordered_json::parse(contents(file));
  for (const char* field : {"plain_peak_bytes", "fingerprint"}) {
    for (const auto& value : {nlohmann::ordered_json(1), nlohmann::ordered_json::object()}) {
      nlohmann::ordered_json broken = json;
      broken[field] = value;
      write_file(file, broken.dump());
      expect_refusal(command("--layers 1"), "lacks the peak of a plain step of gpt2");
    }
  }
}

TEST_F(ExperimentFolder, IsOfOneProcessAtATime) {
  {
    const FolderLock lock(folder_ / "out");
    expect_refusal(command("--layers 1"), "another `reprise experiment` works in " +
                                              (folder_ / "out") + "; let it end, or give another");
  }
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  run(command("--layers 1"));
  EXPECT_FALSE(fs::exists(folder_ / "out/experiment.lock"));
}

TEST_F(ExperimentFolder, ALockThatAKilledProcessLeftHoldsNobodyOff) {
  fs::create_directories(folder_ / "out");
  write_file(folder_ / "out/experiment.lock", "");
  run(command("--layers 1"));
}

TEST_F(ExperimentFolder, IsNotThereAfterARefusal) {
  Arguments line = command("--layers 1", "new/out");
  line.insert(line.end(), {"--text", folder_ / "missing.txt"});
  expect_refusal(line, "missing.txt; give text files with --text");
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  write_file(folder_ / "file", "");
  expect_refusal(command("--layers 1", "file"), "cannot write to folder");
}

TEST_F(ExperimentFolder, RefusalsNameTheOptionsOfExperiments) {
  const auto with = [&](const std::string& model, const std::string& option,
                        const std::string& name) {
    Arguments line = words("experiment pgac --methods none --no-ablations --steps 2 --models");
    line.insert(line.end(), {model, option, folder_ / name, "--out", folder_ / "refused"});
    return line;
  };
  fs::create_directories(folder_ / "empty");
  write_file(folder_ / "binary.txt", std::string("a\0b", 3));
  expect_refusal(with("gpt2", "--text", "empty"), "name text files themselves with --text");
  expect_refusal(with("bert", "--text", "binary.txt"), "is a binary file; give text files with");
  expect_refusal(with("vit", "--images", "none"), "give a folder of pictures with --images");
}

TEST_F(ExperimentFolder, LinesAreKeptIfAllOfThemAreThere) {
  const std::string file = folder_ / "run.jsonl";
  const std::string first = "{\"kind\":\"run\"}\n", one = "{\"kind\":\"step\",\"step\":1}\n",
                    two = "{\"kind\":\"step\",\"step\":2}\n";
  write_file(file, first + one + two);
  EXPECT_EQ(kept_lines(file, 2), first + one + two);
  EXPECT_EQ(kept_lines(file, 1), first + one);
  EXPECT_EQ(kept_lines(file, 3), std::nullopt);
  EXPECT_EQ(kept_lines(folder_ / "none.jsonl", 1), std::nullopt);
  const std::string cut = two.substr(0, two.size() - 1);
  for (const std::string& damaged :
       {first + one + cut, first + two + one, first + one, one + two + two,
        first + one + "{\"kind\":2,\"step\":2}\n", first + one + "2\n", std::string()}) {
    write_file(file, damaged);
    EXPECT_EQ(kept_lines(file, 2), std::nullopt) << damaged;
  }
}

TEST_F(ExperimentFolder, OnlyAWholeLineOfTheEndIsTheEnd) {
  const std::string file = folder_ / "run.jsonl";
  const auto is_end = [&](const std::string& text) {
    write_file(file, text);
    return is_complete(file);
  };
  EXPECT_TRUE(is_end("{\"kind\":\"run\"}\n{\"kind\":\"end\"}\n"));
  for (const char* text : {"{\"kind\":1}\n", "{\"kind\":\"end\"}", "[1]\n", "{\"end\":1}\n", "\n",
                           "", "{\"kind\":\"end\"}\n{\"kind\":\"step\"}\n"}) {
    EXPECT_FALSE(is_end(text)) << text;
  }
  EXPECT_FALSE(is_complete(folder_ / "none.jsonl"));
}

TEST_F(ExperimentFolder, ARunWhoseLinesAreLostBeginsAnew) {
  const ExperimentSettings settings = settings_by_hand();
  const RunPlace place{"gpt2", "none", 1};
  const fs::path file = run_file(settings.out, place);
  const auto train_until = [&](std::int64_t last) {
    return train_run(settings, place, Bytes(0), [last](std::int64_t step) { return step < last; });
  };
  ASSERT_FALSE(train_until(4));
  std::vector<nlohmann::json> lines = lines_of(file);
  ASSERT_EQ(lines.size(), 5U);
  write_file(file, lines[0].dump() + "\n" + lines[1].dump() + "\n");
  std::vector<std::int64_t> steps;
  EXPECT_TRUE(train_run(settings, place, Bytes(0), [&](std::int64_t step) {
    steps.push_back(step);
    return true;
  }));
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6));
  const std::vector<nlohmann::json> anew = lines_of(file);
  ASSERT_EQ(anew.size(), 8U);
  for (std::size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(anew[i]["loss"], lines[i]["loss"]);
  EXPECT_FALSE(fs::exists(fs::path(file).replace_extension("saved")));
}

TEST_F(ExperimentFolder, ADamagedSaveIsRefusedWithWhatHelpsAnExperiment) {
  const ExperimentSettings settings = settings_by_hand();
  const RunPlace place{"gpt2", "none", 1};
  const auto train_until = [&](std::int64_t last) {
    return train_run(settings, place, Bytes(0), [last](std::int64_t step) { return step < last; });
  };
  ASSERT_FALSE(train_until(4));
  const fs::path saved = run_file(settings.out, place).replace_extension("saved");
  const fs::path file = saved / "training.reprise";
  const std::string whole = contents(file);
  std::string changed = whole;
  changed[changed.size() / 2] ^= 1;
  const std::string remedy =
      "; remove the folder " + saved.string() + ", and the same command trains the run from its";
  for (const std::string& bytes : {std::string("short"), whole.substr(0, 500), changed}) {
    write_file(file, bytes);
    const std::string text = refusal_of<UsageError>([&] { train_until(6); });
    EXPECT_THAT(text, HasSubstr(file.string() + " is "));
    EXPECT_THAT(text, HasSubstr("damaged"));
    EXPECT_THAT(text, HasSubstr(remedy));
    EXPECT_THAT(text, Not(HasSubstr("--checkpoint-dir")));
  }
  fs::remove_all(saved);
  EXPECT_TRUE(train_until(7));
}

TEST_F(ExperimentFolder, NoSaveStaysBesideARunThatIsComplete) {
  run(command("--layers 1"));
  const fs::path saved = folder_ / "out/runs/gpt2/none/1.saved";
  fs::create_directories(saved);
  run(command("--layers 1"));
  EXPECT_FALSE(fs::exists(saved));
}

TEST_F(ExperimentFolder, NoSaveStaysBesideARunThatEndedForItsBudget) {
  const ExperimentSettings settings = settings_by_hand();
  const RunPlace place{"gpt2", "pgac:text", 1};
  const Bytes plain = measure_plain_step(settings, "gpt2").peak;
  const auto train = [&](Bytes peak) {
    return train_run(settings, place, peak, [](std::int64_t step) { return step < 3; });
  };
  ASSERT_FALSE(train(Bytes(2 * plain.count)));
  const fs::path saved = run_file(settings.out, place).replace_extension("saved");
  ASSERT_TRUE(fs::exists(saved));
  EXPECT_TRUE(train(Bytes(1000)));
  EXPECT_TRUE(is_complete(run_file(settings.out, place)));
  EXPECT_FALSE(fs::exists(saved));
}

}  // namespace
}  // namespace reprise::app
