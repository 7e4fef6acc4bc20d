// Texts with a label each, one or two texts an example, out of the columns of a table: the shape of
// GLUE's tasks (Wang et al., arXiv:1804.07461).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace reprise::app {

// Columns by their name in the first record, or by their number, from 1. A table whose columns are
// all given by number may have no first record of names: `names` says.
struct TextColumns {
  std::string text = "sentence";
  std::string second;  // empty: one text an example
  std::string label = "label";
  bool names = true;  // whether the first record holds the columns' names
};

struct LabelledText {
  struct Example {
    std::string text, second;
    std::size_t label = 0;  // index into `labels`
  };
  std::vector<Example> examples;
  std::vector<std::string> labels;  // sorted
};

// Reads tables of the same columns, by read_delimited(). Throws UsageError: "FILE:LINE: ..." for a
// record that lacks a column or has no label; naming the columns that there are, for one that is
// unknown; for tables without two different labels.
LabelledText read_labelled_text(const std::vector<std::string>& files, const TextColumns& columns);

// The same for held-out tables, whose labels must be among `labels`.
LabelledText read_labelled_text(const std::vector<std::string>& files, const TextColumns& columns,
                                const std::vector<std::string>& labels);

}  // namespace reprise::app
