// The table of codecs; see registry.cc for why codec.def is read twice.
#include "millrace/collective/codec.h"

#include <fmt/format.h>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/collective/internal/codecs.h"

namespace millrace {

const std::vector<CodecEntry>& codecs() {
  static const std::vector<CodecEntry> entries = {
#define CODEC(name, symbol, text, bytes, error) {name, text, bytes, error, &builtin_codecs::symbol},
#include "millrace/collective/codec.def"
#undef CODEC
  };
  return entries;
}

const CodecEntry& find_codec(const std::string& name) {
  std::vector<std::string> names;
  for (const CodecEntry& entry : codecs()) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) {
    hint = fmt::format("; there are: {}", join(names, ", "));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("expected the name of a codec, found {}{}", in_quotes(name), hint));
}

}  // namespace millrace
