// The table of builtin models. Declares and tabulates what builtin.def lists; a static registrar
// would be dropped with its object file when the linker takes from a static library only what is
// asked for.
#include <fmt/format.h>

#include <utility>

#include "millrace/base/text.h"
#include "millrace/model/model.h"

namespace millrace {

#define MODEL(name, symbol, text, options) Model symbol(ModelRequest&);
#include "millrace/model/builtin.def"
#undef MODEL

namespace {

std::vector<ModelEntry>& table() {
  static std::vector<ModelEntry> entries = {
#define MODEL(name, symbol, text, options) ModelEntry{name, text, options, symbol},
#include "millrace/model/builtin.def"
#undef MODEL
  };
  return entries;
}

}  // namespace

const std::vector<ModelEntry>& models() { return table(); }

void add_model(ModelEntry entry) {
  for (const ModelEntry& other : table()) {
    if (other.name == entry.name) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("there is a model \"{}\" already; choose another name", entry.name));
    }
  }
  table().push_back(std::move(entry));
}

const ModelEntry& find_model(const std::string& name) {
  std::vector<std::string> names;
  for (const ModelEntry& entry : models()) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown model \"{}\"; there are: {}{}", name, join(names, ", "),
                          did_you_mean(name, names)));
}

}  // namespace millrace
