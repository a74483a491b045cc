// The table of builtin datasets: see millrace/model/registry.cc for why it is made this way.
#include <fmt/format.h>

#include <utility>

#include "millrace/base/text.h"
#include "millrace/data/dataset.h"

namespace millrace {

#define DATASET(name, symbol, text, options) DataSplits symbol(Reader&, uint64_t);
#include "millrace/data/builtin.def"
#undef DATASET

namespace {

std::vector<DataEntry>& table() {
  static std::vector<DataEntry> entries = {
#define DATASET(name, symbol, text, options) DataEntry{name, text, options, symbol},
#include "millrace/data/builtin.def"
#undef DATASET
  };
  return entries;
}

}  // namespace

const std::vector<DataEntry>& datasets() { return table(); }

void add_dataset(DataEntry entry) {
  for (const DataEntry& other : table()) {
    if (other.name == entry.name) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("there is a dataset \"{}\" already; choose another name", entry.name));
    }
  }
  table().push_back(std::move(entry));
}

const DataEntry& find_dataset(const std::string& name) {
  std::vector<std::string> names;
  for (const DataEntry& entry : datasets()) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown dataset \"{}\"; there are: {}{}", name, join(names, ", "),
                          did_you_mean(name, names)));
}

}  // namespace millrace
