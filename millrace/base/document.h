// JSON and TOML files as one tree of values that remember their line, and a strict reader over it.
//
// Every artifact and run.toml is read through Reader: unknown, missing, duplicate and ill-typed
// keys, NaN, negative quantities are refused with file, line, key, what was expected and, for a
// misspelt key, the nearest known name. Heavy parsing headers stay in parse_json.cc and
// parse_toml.cc. Values are plain; const access from several threads is safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/error.h"

namespace millrace {

// One value of a parsed document. Integers keep their kind, so that `batch = 1.5` can be refused.
struct Value {
  enum class Kind { kNull, kBool, kInteger, kFloat, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0.0;  // also set for integers
  std::string string;
  std::vector<Value> array;
  std::vector<std::pair<std::string, Value>> object;  // in file order, keys unique
  int line = 0;                                       // 1-based; 0 when made in memory
  // What errors name instead of the document's file, for a value put over it (--set); else null.
  // Shared because every part of such a value refers to one setting.
  std::shared_ptr<const std::string> origin;

  static Value of(bool v);
  static Value of(int64_t v);
  static Value of(int v) { return of(static_cast<int64_t>(v)); }
  static Value of(double v);
  static Value of(std::string v);
  static Value of(const char* v) { return of(std::string(v)); }
  static Value list(std::vector<Value> items = {});
  static Value map();

  // Member of an object, or null pointer.
  const Value* find(std::string_view key) const;
  // Adds or replaces a member; the value must be an object (or null, which becomes one).
  Value& set(std::string key, Value value);
  void push(Value item) { array.push_back(std::move(item)); }

  // Ignores lines, origins and the order of keys; 1 and 1.0 differ.
  bool operator==(const Value& other) const;
};

// A parsed file: its root object and the name used in errors.
struct Document {
  std::string file;
  Value root;
};

// Throw Error(kBadFile) with path:line on syntax errors, duplicate keys, bytes that are not UTF-8,
// an empty file, a file above 64 MiB, more than 5 million values, nesting deeper than 200, integers
// beyond 64 bits, and dates (TOML). The root must be an object (a TOML document always is).
Document parse_json(std::string_view text, std::string file);
Document parse_toml(std::string_view text, std::string file);
// Reads and parses by content: a file whose first non-blank byte is '{' is JSON, else TOML.
Document read_document(const std::string& path);

// Shortest text that reads back to the same doubles; keys in insertion order; `indent` spaces a
// level (a list or object of plain values stays on one line where 100 columns hold it), or all on
// one line when `indent` is negative. NaN and infinities are a kInternal error; bytes that are not
// UTF-8 become U+FFFD. to_toml puts a table's plain values before its tables, and has no form for
// null (kInternal).
std::string to_json(const Value& value, int indent = 2);
std::string to_toml(const Value& value);

// Strict view of one object of a document, which must outlive it. Ask for every key there is, then
// call finish(): what was not asked for is refused as unknown. Errors are Error(kInvalidArgument)
// carrying file, line and key.
class Reader {
 public:
  explicit Reader(const Document& document);

  bool has(std::string_view key) const;

  // Required: an absent key is an error that names it.
  std::string text(std::string_view key);
  int64_t integer(std::string_view key);
  double number(std::string_view key);  // finite; an integer is accepted
  bool boolean(std::string_view key);
  std::vector<std::string> texts(std::string_view key);
  std::vector<int64_t> integers(std::string_view key);
  std::vector<double> numbers(std::string_view key);
  Reader object(std::string_view key);
  std::vector<Reader> objects(std::string_view key);

  // With a default.
  std::string text(std::string_view key, std::string_view fallback);
  int64_t integer(std::string_view key, int64_t fallback);
  double number(std::string_view key, double fallback);
  bool boolean(std::string_view key, bool fallback);

  // Quantities: refuse negative values (`least` is the smallest allowed).
  double quantity(std::string_view key);                   // >= 0
  double quantity(std::string_view key, double fallback);  // >= 0
  int64_t count(std::string_view key, int64_t least);
  int64_t count(std::string_view key, int64_t least, int64_t fallback);

  // The raw value, marked as read; null pointer when absent.
  const Value* raw(std::string_view key);

  // Refuses keys that nobody asked for, naming the nearest one that somebody did ask for.
  void finish() const;

  // An error at `key` of this object (or at the object itself when empty), for checks of meaning.
  Error error(std::string_view key, const std::string& message) const;
  const std::string& path() const { return path_; }  // "stages[1]", "" at the root
  const std::string& file() const { return *file_; }
  int line() const { return value_->line; }

 private:
  Reader(std::shared_ptr<const std::string> file, const Value* value, std::string path);
  const Value& need(std::string_view key);

  std::shared_ptr<const std::string> file_;
  const Value* value_;
  std::string path_;
  std::vector<std::string> asked_;
};

// Checks "artifact" and "version" members that every artifact file carries, e.g.
// {"artifact": "profile", "version": 1, ...}.
void expect_artifact(Reader& reader, std::string_view artifact, int version);

}  // namespace millrace
