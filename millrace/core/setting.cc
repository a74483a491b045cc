// Settings of the command line, "a.b=c", over a parsed document (run_config.h).
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/run_config.h"

namespace millrace {
namespace {

using Origin = std::shared_ptr<const std::string>;

// A setting has no lines; what it holds is named after the setting itself.
void set_origin(Value& value, const Origin& origin) {
  value.line = 0;
  value.origin = origin;
  for (Value& item : value.array) {
    set_origin(item, origin);
  }
  for (auto& member : value.object) {
    set_origin(member.second, origin);
  }
}

// Text that needs no quotes on a command line: no TOML value starts like it, and it is one line.
bool is_bare_word(const std::string& text) {
  return text.find_first_of("\"'[]{}#\n\r\t=,") == std::string::npos;
}

Value parse_setting_value(const std::string& text, const std::string& origin) {
  try {
    Document document = parse_toml("value = " + text, origin);
    if (document.root.object.size() == 1) {
      return std::move(document.root.object[0].second);
    }
  } catch (const Error& error) {
    if (!is_bare_word(text)) {
      throw Error(ErrorCode::kInvalidArgument, error.message()).in_file(origin);
    }
  }
  if (!is_bare_word(text)) {
    throw Error(ErrorCode::kInvalidArgument, "expected one value after `=`").in_file(origin);
  }
  return Value::of(text);
}

}  // namespace

void apply_setting(Document& document, const std::string& setting) {
  const Origin origin = std::make_shared<const std::string>("--set " + setting);
  const auto refuse = [&origin](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message).in_file(*origin);
  };
  const std::size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    refuse("expected table.key=value, found no `=`");
  }
  std::vector<std::string> path = split(setting.substr(0, equals), '.');
  for (std::string& part : path) {
    part = trim(part);
    if (part.empty()) {
      refuse("expected table.key=value, found an empty name before `=`");
    }
  }
  const std::string text = trim(setting.substr(equals + 1));
  if (text.empty()) {
    refuse("expected a value after `=`, found nothing; write \"\" for empty text");
  }
  Value value = parse_setting_value(text, *origin);
  set_origin(value, origin);

  // Look before changing anything, so that a refused setting leaves the document as it was.
  const Value* existing = &document.root;
  for (std::size_t i = 0; i + 1 < path.size() && existing != nullptr; ++i) {
    existing = existing->find(path[i]);
    if (existing != nullptr && existing->kind != Value::Kind::kObject) {
      refuse(fmt::format("{} is no table, so it has no key {}", in_quotes(path[i]),
                         in_quotes(path[i + 1])));
    }
  }
  Value* table = &document.root;
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (table->find(path[i]) == nullptr) {
      Value made = Value::map();
      made.origin = origin;
      table->set(path[i], std::move(made));
    }
    for (auto& member : table->object) {
      if (member.first == path[i]) {
        table = &member.second;
        break;
      }
    }
  }
  table->set(path.back(), std::move(value));
}

}  // namespace millrace
