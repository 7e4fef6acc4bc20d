// What experiments read: tables, compressed files, labelled texts, vocabularies, pictures, and what
// the setup has installed.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <zlib.h>

#include <cstdlib>
#include <set>

#include "apps/cli/experiment/delimited.h"
#include "apps/cli/experiment/fingerprint.h"
#include "apps/cli/experiment/gzip.h"
#include "apps/cli/experiment/image_file.h"
#include "apps/cli/experiment/image_set.h"
#include "apps/cli/experiment/installed_data.h"
#include "apps/cli/experiment/labelled_text.h"
#include "apps/cli/experiment/vocabulary.h"
#include "apps/cli/training/draws.h"
#include "tests/cli/experiment_files.h"

namespace reprise::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::vector<std::string>> fields_of_table(const std::string& text, Delimited form) {
  std::vector<std::vector<std::string>> rows;
  for (const Record& record : parse_delimited(text, form, "t")) rows.push_back(record.fields);
  return rows;
}

std::string table_refusal(const std::string& text) {
  return refusal_of([&] { parse_delimited(text, Delimited::kCsv, "t.csv"); });
}

TEST(Delimited, CsvIsReadAsRfc4180) {
  EXPECT_THAT(
      fields_of_table("a,b\r\n\"x, y\",\"say \"\"no\"\"\nor\"\n,\n\n\"\",z", Delimited::kCsv),
      ElementsAre(ElementsAre("a", "b"), ElementsAre("x, y", "say \"no\"\nor"), ElementsAre("", ""),
                  ElementsAre("", "z")));
}

TEST(Delimited, TsvKnowsNoQuotes) {
  EXPECT_THAT(fields_of_table("\xef\xbb\xbf\"a\tb, \"c\"\n\t\n", Delimited::kTsv),
              ElementsAre(ElementsAre("\"a", "b, \"c\""), ElementsAre("", "")));
}

TEST(Delimited, RecordsKnowTheirLines) {
  std::vector<std::size_t> lines;
  for (const Record& record : parse_delimited("a\n\n\"b\n\nb\"\nc", Delimited::kCsv, "t")) {
    lines.push_back(record.line);
  }
  EXPECT_THAT(lines, ElementsAre(1, 3, 6));
}

TEST(Delimited, BrokenQuotesAreToldWithTheirLine) {
  EXPECT_THAT(table_refusal("a\nb,\"c\nd\n"), HasSubstr("t.csv:2: a quoted field has no end"));
  EXPECT_THAT(table_refusal("a\nb\"c\n"), HasSubstr("t.csv:2: a quote inside a field"));
  EXPECT_THAT(table_refusal("\"a\n\"b"), HasSubstr("t.csv:2: text after the end of a quoted"));
}

TEST(Delimited, FilesGoByTheirEndings) {
  const TemporaryFolder folder;
  write_file(folder / "a.CSV", "x,y\n");
  write_file(folder / "b.tsv.gz", gzipped("x\ty,z\n"));
  EXPECT_THAT(read_delimited(folder / "a.CSV")[0].fields, ElementsAre("x", "y"));
  EXPECT_THAT(read_delimited(folder / "b.tsv.gz")[0].fields, ElementsAre("x", "y,z"));
  EXPECT_THAT(refusal_of([&] { read_delimited(folder / "c.txt"); }),
              HasSubstr("c.txt is no table by its name; give a file that ends in .csv, .tsv"));
  EXPECT_THAT(refusal_of([&] { read_delimited(folder / "d.csv"); }), HasSubstr("cannot read"));
}

TEST(Gunzip, ReadsSeveralMembersAndLongTexts) {
  std::string longer(300'000, 'a');
  for (std::size_t i = 0; i < longer.size(); i += 7) longer[i] = static_cast<char>('b' + i % 20);
  EXPECT_EQ(gunzip(gzipped("first ") + gzipped(longer), "f"), "first " + longer);
  EXPECT_EQ(gunzip(gzipped(""), "f"), "");
}

TEST(Gunzip, RefusesWhatIsDamaged) {
  const std::string whole = gzipped("some text that is long enough");
  for (std::size_t length = 1; length < whole.size(); ++length) {
    EXPECT_THAT(refusal_of([&] { gunzip(whole.substr(0, length), "f.gz"); }),
                HasSubstr("f.gz ends too early"))
        << length;
  }
  EXPECT_THAT(refusal_of([&] { gunzip("plain text", "f.gz"); }),
              HasSubstr("f.gz is damaged, or no gzip file; fetch or compress it again"));
  std::string flipped = whole;
  flipped[whole.size() - 6] ^= 1;  // the checksum
  EXPECT_THAT(refusal_of([&] { gunzip(flipped, "f.gz"); }), HasSubstr("is damaged"));
  EXPECT_THAT(refusal_of([&] { gunzip("", "f.gz"); }), HasSubstr("f.gz is empty"));
}

TEST(LabelledText, TakesColumnsByNameAndByNumber) {
  const TemporaryFolder folder;
  write_file(folder / "a.tsv", "label\tone\ttwo\nyes\tA\tB\nno\tC\tD\n");
  const LabelledText named =
      read_labelled_text({folder / "a.tsv"}, {.text = "one", .second = "two", .label = "label"});
  EXPECT_THAT(named.labels, ElementsAre("no", "yes"));
  ASSERT_EQ(named.examples.size(), 2u);
  EXPECT_EQ(named.examples[0].text + named.examples[0].second, "AB");
  EXPECT_EQ(named.examples[0].label, 1u);
  EXPECT_EQ(named.examples[1].label, 0u);

  write_file(folder / "b.csv", "x,1,,\"first, text\"\ny,0,,second\n");
  const LabelledText numbered = read_labelled_text(
      {folder / "b.csv"}, {.text = "4", .second = "", .label = "2", .names = false});
  EXPECT_EQ(numbered.examples[0].text, "first, text");
  EXPECT_EQ(numbered.examples[0].second, "");
  EXPECT_THAT(numbered.labels, ElementsAre("0", "1"));
}

TEST(LabelledText, RefusesWithFileAndLine) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& text, const TextColumns& columns = {}) {
    write_file(folder / "t.tsv", text);
    return refusal_of([&] { read_labelled_text({folder / "t.tsv"}, columns); });
  };
  EXPECT_THAT(refusal("text\tlabel\na\t1\n"),
              HasSubstr("t.tsv:1: no column 'sentence'; give one of text, label, or a number"));
  EXPECT_THAT(refusal("sentence\tlabel\na\t1\nb\n"),
              HasSubstr("t.tsv:3: no column 2, the record has 1"));
  EXPECT_THAT(refusal("sentence\tlabel\na\t1\nb\t\n"), HasSubstr("t.tsv:3: the label is empty"));
  EXPECT_THAT(refusal("sentence\tlabel\na\t1\nb\t1\n"),
              HasSubstr("has 1 different label in column 'label'; at least 2 are needed"));
  EXPECT_THAT(refusal("", {}), HasSubstr("t.tsv has no records"));
  EXPECT_THAT(refusal("a\t1\n", {.text = "text", .second = "", .label = "2", .names = false}),
              HasSubstr("column 'text' is no number, and the table has no names"));
  write_file(folder / "t.tsv", "sentence\tlabel\na\t1\nb\t2\n");
  EXPECT_THAT(refusal_of([&] {
                read_labelled_text({folder / "t.tsv"}, {}, {"1", "3"});
              }),
              HasSubstr("t.tsv:3: label '2' is none of the training data's: 1, 3"));
}

TEST(Vocabulary, OfBytesHasATokenForEach) {
  const Vocabulary bytes = Vocabulary::bytes();
  EXPECT_EQ(bytes.size(), 256 + Vocabulary::kSpecialTokens);
  EXPECT_THAT(bytes.encode(std::string("a\0\xff", 3)), ElementsAre(5 + 'a', 5, 5 + 255));
}

TEST(Vocabulary, OfWordsKeepsTheMostFrequent) {
  const Vocabulary words = Vocabulary::words("The cat, the dog, the end. A cat", 8);
  EXPECT_EQ(words.size(), 8);
  // "the" three times; "," and "cat" twice, by their bytes.
  EXPECT_THAT(words.encode("the , CAT  dog"), ElementsAre(5, 6, 7, Vocabulary::kUnknown));
  EXPECT_EQ(Vocabulary::words("one two", 100).size(), Vocabulary::kSpecialTokens + 2);
  EXPECT_THAT(Vocabulary::words(" \n", 100).encode("a b"), ElementsAre(1, 1));
}

TEST(EpochOrder, TakesEveryExampleOnceAnEpochWhateverIsAskedFirst) {
  EpochOrder order(7, 10);
  std::vector<std::size_t> all;
  for (std::int64_t step = 0; step < 5; ++step) {
    for (const std::size_t example : order.batch(step, 4)) all.push_back(example);
  }
  const std::vector<std::size_t> first(all.begin(), all.begin() + 10);
  const std::vector<std::size_t> second(all.begin() + 10, all.end());
  EXPECT_EQ(std::set<std::size_t>(first.begin(), first.end()).size(), 10u);
  EXPECT_EQ(std::set<std::size_t>(second.begin(), second.end()).size(), 10u);
  EXPECT_NE(first, second);
  EXPECT_EQ(order.batch(1, 4), std::vector<std::size_t>(all.begin() + 4, all.begin() + 8));
  EXPECT_NE(EpochOrder(8, 10).batch(0, 10), first);
}

TEST(ImageFile, ReadsTheFormatsAlike) {
  const TemporaryFolder folder;
  // Upper row red and green, lower row blue and white.
  const std::string rgb("\xff\0\0\0\xff\0\0\0\xff\xff\xff\xff", 12);
  write_file(folder / "a.ppm", "P6 2 2 255\n" + rgb);
  write_file(folder / "b.png", png(2, 2, rgb));
  const auto ppm = read_image(folder / "a.ppm", 2, 3);
  EXPECT_EQ(ppm.sizes(), (std::vector<std::int64_t>{3, 2, 2}));
  EXPECT_TRUE(torch::equal(ppm[0], torch::tensor({{1.F, -1.F}, {-1.F, 1.F}})));
  EXPECT_TRUE(torch::equal(ppm[2], torch::tensor({{-1.F, -1.F}, {1.F, 1.F}})));
  EXPECT_TRUE(torch::equal(read_image(folder / "b.png", 2, 3), ppm));
  const auto grey = read_image(folder / "a.ppm", 2, 1);
  EXPECT_EQ(grey.sizes(), (std::vector<std::int64_t>{1, 2, 2}));
  EXPECT_EQ(grey[0][1][1].item<float>(), 1.F);
}

TEST(ImageFile, ScalesTheShorterSideAndCutsTheMiddleOut) {
  const TemporaryFolder folder;
  // 4 by 12: thirds of black, white, black.
  std::string bytes;
  for (int row = 0; row < 4; ++row) {
    bytes += std::string(4, '\0') + std::string(4, '\xff') + std::string(4, '\0');
  }
  write_file(folder / "a.pgm", "P5 12 4 255\n" + bytes);
  EXPECT_TRUE(torch::equal(read_image(folder / "a.pgm", 4, 1), torch::ones({1, 4, 4})));
  const auto smaller = read_image(folder / "a.pgm", 2, 1);
  EXPECT_EQ(smaller.sizes(), (std::vector<std::int64_t>{1, 2, 2}));
  EXPECT_GT(smaller.min().item<float>(), 0.F);
  EXPECT_EQ(read_image(folder / "a.pgm", 9, 3).sizes(), (std::vector<std::int64_t>{3, 9, 9}));
}

TEST(ImageFile, RefusesWhatCannotBeDecoded) {
  const TemporaryFolder folder;
  write_file(folder / "a.png", "no picture");
  EXPECT_THAT(refusal_of([&] { read_image(folder / "a.png", 2, 3); }),
              HasSubstr("cannot decode " + folder / "a.png"));
  EXPECT_THAT(refusal_of([&] { read_image(folder / "b.png", 2, 3); }), HasSubstr("cannot read"));
}

TEST(ImageSet, OfAFolderHasAClassForEachSubFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "cat/more");
  std::filesystem::create_directories(folder / "ant");
  write_file(folder / "cat/b.ppm", ppm_of_one(255));
  write_file(folder / "cat/more/a.ppm", ppm_of_one(0));
  write_file(folder / "cat/notes.txt", "no picture");
  write_file(folder / "ant/c.ppm", ppm_of_one(51));
  const ImageSet set = ImageSet::of_folder(folder.path(), {.size = 2, .channels = 3});
  EXPECT_THAT(set.classes(), ElementsAre("ant", "cat"));
  ASSERT_EQ(set.size(), 3u);
  const ImageBatch batch = set.batch({0, 1, 2});
  EXPECT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{3, 3, 2, 2}));
  EXPECT_TRUE(torch::equal(batch.classes, torch::tensor({0, 1, 1}, at::kLong)));
  EXPECT_NEAR(batch.images[0].mean().item<float>(), -0.6, 1e-6);
  EXPECT_EQ(batch.images[1].mean().item<float>(), 1.F);
  EXPECT_EQ(batch.images[2].mean().item<float>(), -1.F);
}

TEST(ImageSet, AFolderIsKnownAgainByItsPictures) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "cat");
  std::filesystem::create_directories(folder / "ant");
  write_file(folder / "cat/a.ppm", ppm_of_one(255));
  write_file(folder / "ant/b.ppm", ppm_of_one(51));
  const auto fingerprint = [&] {
    Fingerprint fingerprint;
    ImageSet::of_folder(folder.path(), {}).add_to(fingerprint);
    return fingerprint.value();
  };
  const std::uint64_t before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  write_file(folder / "cat/a.ppm", ppm_of_one(254));
  EXPECT_NE(fingerprint(), before);
  write_file(folder / "cat/a.ppm", ppm_of_one(255));
  std::filesystem::rename(folder / "cat", folder / "dog");
  EXPECT_NE(fingerprint(), before);
}

TEST(ImageSet, RefusesFoldersThatAreNoClasses) {
  const TemporaryFolder folder;
  const auto refusal = [&] { return refusal_of([&] { ImageSet::of_folder(folder.path(), {}); }); };
  std::filesystem::create_directories(folder / "a");
  EXPECT_THAT(refusal(),
              HasSubstr("has 1 sub-folder; a folder of pictures has one for each class"));
  std::filesystem::create_directories(folder / "b");
  EXPECT_THAT(refusal(), HasSubstr("/a has no pictures (files such as .png or .jpg)"));
  write_file(folder / "a/a.ppm", ppm_of_one(0));
  write_file(folder / "b/b.ppm", ppm_of_one(0));
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(refusal_of([&] {
                ImageSet::of_folder(folder.path(), {}, {"a", "c"});
              }),
              HasSubstr("/b is none of the training data's classes: a, c"));
  EXPECT_THAT(refusal_of([&] { ImageSet::of_folder(folder / "none", {}); }),
              HasSubstr("No such file or directory"));
}

TEST(ImageSet, OfDigitsReadsPixelsAndTheirDigit) {
  const TemporaryFolder folder;
  write_file(folder / "d.csv.gz", gzipped(digit_record(3, 16) + digit_record(9, 0)));
  const ImageSet set = ImageSet::of_digits(folder / "d.csv.gz", {});
  EXPECT_EQ(set.classes().size(), 10u);
  const ImageBatch batch = set.batch({1, 0});
  EXPECT_TRUE(torch::equal(batch.classes, torch::tensor({9, 3}, at::kLong)));
  EXPECT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{2, 1, 8, 8}));
  EXPECT_TRUE(torch::equal(batch.images[1], torch::ones({1, 8, 8})));
  const ImageSet larger = ImageSet::of_digits(folder / "d.csv.gz", {.size = 16, .channels = 3});
  EXPECT_EQ(larger.batch({0}).images.sizes(), (std::vector<std::int64_t>{1, 3, 16, 16}));
}

TEST(ImageSet, RefusesRecordsThatAreNoDigits) {
  const TemporaryFolder folder;
  for (const std::string& record : {std::string("1,2,3\n"), digit_record(10, 0),
                                    digit_record(1, 17), digit_record(1, -1), std::string("a\n")}) {
    write_file(folder / "d.csv", digit_record(0, 1) + record);
    EXPECT_THAT(refusal_of([&] { ImageSet::of_digits(folder / "d.csv", {}); }),
                HasSubstr("d.csv:2: no 64 pixels from 0 to 16 and a digit"))
        << record;
  }
}

TEST(InstalledData, IsWhatTheManifestSays) {
  const TemporaryFolder folder;
  write_file(folder / "digits.csv.gz", "");
  write_file(folder / "manifest.tsv", "text\t/\tthe root\ndigits\tdigits.csv.gz\tscikit-learn\n");
  const EnvironmentVariable variable("REPRISE_EXPERIMENT_DATA", folder.path());
  const InstalledData data = find_installed_data();
  ASSERT_EQ(data.text.size(), 1u);
  EXPECT_EQ(data.text[0].path, "/");
  EXPECT_EQ(data.text[0].origin, "the root");
  EXPECT_TRUE(data.labels.empty());
  EXPECT_EQ(data.digits[0].path, folder / "digits.csv.gz");
}

TEST(InstalledData, IsLookedForInTheHomeFolder) {
  const TemporaryFolder folder;
  const EnvironmentVariable unset("REPRISE_EXPERIMENT_DATA", ""), no_data("XDG_DATA_HOME", "");
  const EnvironmentVariable home("HOME", folder.path());
  EXPECT_TRUE(find_installed_data().text.empty());
  EXPECT_THAT(installed_data_remedy(find_installed_data()),
              HasSubstr("run scripts/setup --experiments, which installs some in " +
                        folder / ".local/share/reprise/experiments"));
  std::filesystem::create_directories(folder / ".local/share/reprise/experiments");
  write_file(folder / ".local/share/reprise/experiments/manifest.tsv", "text\t/\troot\n");
  EXPECT_EQ(find_installed_data().text.size(), 1u);
  const EnvironmentVariable data("XDG_DATA_HOME", folder / "data");
  EXPECT_EQ(find_installed_data().folder, folder / "data/reprise/experiments");
}

TEST(InstalledData, RefusesAManifestThatDoesNotFit) {
  const TemporaryFolder folder;
  const EnvironmentVariable variable("REPRISE_EXPERIMENT_DATA", folder.path());
  EXPECT_THAT(refusal_of([] { find_installed_data(); }), HasSubstr("which has no manifest.tsv"));
  const auto refusal = [&](const std::string& text) {
    write_file(folder / "manifest.tsv", text);
    return refusal_of([] { find_installed_data(); });
  };
  EXPECT_THAT(refusal("text\t/\n"), HasSubstr("manifest.tsv:1: 2 fields instead of kind, path"));
  EXPECT_THAT(refusal("text\t/\tx\nsound\t/\tx\n"),
              HasSubstr("manifest.tsv:2: 'sound' is no kind"));
  EXPECT_THAT(refusal("text\tgone\tx\n"), HasSubstr("gone; run scripts/setup --experiments again"));
}

}  // namespace
}  // namespace reprise::app
