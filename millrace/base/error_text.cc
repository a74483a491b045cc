#include "millrace/base/error_text.h"

#include <algorithm>
#include <cstdint>

#include "millrace/base/document.h"

namespace millrace {
namespace {

Error decoded(const std::string& text) {
  const Document document = parse_json(text, "an error");
  Reader reader(document);
  const int64_t code = reader.integer("code");
  if (code < 0 || code > static_cast<int64_t>(ErrorCode::kInternal)) {
    throw Error(ErrorCode::kInternal, "an error code that is none");
  }
  Error error(static_cast<ErrorCode>(code), reader.text("message"));
  if (reader.has("file")) {
    error.in_file(reader.text("file"), static_cast<int>(reader.integer("line", 0)));
  }
  if (reader.has("key")) {
    error.at_key(reader.text("key"));
  }
  if (reader.has("rank")) {
    error.at_rank(static_cast<int>(reader.integer("rank")));
  }
  if (reader.has("stage")) {
    error.at_stage(static_cast<int>(reader.integer("stage")));
  }
  if (reader.has("microbatch")) {
    error.at_microbatch(reader.integer("microbatch"));
  }
  if (reader.has("action")) {
    error.at_action(reader.text("action"));
  }
  return error;
}

}  // namespace

std::string to_text(const Error& error, std::size_t most) {
  std::string message = error.message();
  for (;;) {
    Value value = Value::map();
    value.set("code", Value::of(static_cast<int>(error.code())));
    value.set("message", Value::of(message));
    if (error.file()) {
      value.set("file", Value::of(*error.file()));
    }
    if (error.line()) {
      value.set("line", Value::of(*error.line()));
    }
    if (error.key()) {
      value.set("key", Value::of(*error.key()));
    }
    if (error.rank()) {
      value.set("rank", Value::of(*error.rank()));
    }
    if (error.stage()) {
      value.set("stage", Value::of(*error.stage()));
    }
    if (error.microbatch()) {
      value.set("microbatch", Value::of(*error.microbatch()));
    }
    if (error.action()) {
      value.set("action", Value::of(*error.action()));
    }
    std::string text = to_json(value, -1);
    if (text.size() <= most) {
      return text;
    }
    if (message.size() < 8) {  // the other fields alone are too long
      return to_text(Error(error.code(), message), most);
    }
    message.resize(std::min(message.size() * 3 / 4, most));
  }
}

Error error_from_text(const std::string& text) {
  try {
    return decoded(text);
  } catch (const Error&) {
    return {ErrorCode::kInternal, "another process failed: " + text};
  }
}

}  // namespace millrace
