#include "millrace/core/checkpoint.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

TensorEntry tensor_from(Reader& reader) {
  TensorEntry tensor;
  tensor.name = reader.text("name");
  tensor.layer = reader.text("layer");
  tensor.dtype = reader.text("dtype");
  for (const auto& [key, text] :
       {std::pair("name", &tensor.name), std::pair("dtype", &tensor.dtype)}) {
    if (text->empty()) {
      throw reader.error(key, "expected a name, found empty text");
    }
  }
  tensor.shape = reader.integers("shape");
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    if (size < 0) {
      throw reader.error("shape", fmt::format("expected sizes of 0 or more, found {}", size));
    }
    if (__builtin_mul_overflow(elements, size, &elements)) {
      throw reader.error("shape", "the tensor would have more elements than 64 bits can count");
    }
  }
  const int64_t crc = reader.count("crc32", 0);
  if (crc > std::numeric_limits<uint32_t>::max()) {
    throw reader.error("crc32", fmt::format("expected a number of 32 bits, found {}", crc));
  }
  tensor.crc32 = static_cast<uint32_t>(crc);
  reader.finish();
  return tensor;
}

}  // namespace

CheckpointManifest manifest_from(const Document& document) {
  Reader reader(document);
  expect_artifact(reader, "checkpoint", 1);
  CheckpointManifest manifest;
  manifest.model = reader.text("model");
  manifest.step = reader.count("step", 0);
  manifest.epoch = reader.count("epoch", 0);
  manifest.step_in_epoch = reader.count("step_in_epoch", 0);
  manifest.batch = reader.count("batch", 1);
  manifest.samples = reader.count("samples", 0);
  manifest.seed = static_cast<uint64_t>(reader.count("seed", 0));
  manifest.optimizer = reader.text("optimizer");
  std::set<std::string> seen;
  for (Reader& item : reader.objects("tensors")) {
    manifest.tensors.push_back(tensor_from(item));
    const std::string& name = manifest.tensors.back().name;
    if (!seen.insert(name).second) {
      throw item.error("name", fmt::format("tensor {} stands there twice", in_quotes(name)));
    }
  }
  reader.finish();
  return manifest;
}

Value to_value(const CheckpointManifest& manifest) {
  // Files hold signed integers; run.toml gives no seed beyond them.
  MILLRACE_CHECK(manifest.seed <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                 "a seed above 2^63-1 has no form in a file");
  Value root = Value::map();
  root.set("artifact", Value::of("checkpoint"));
  root.set("version", Value::of(1));
  root.set("model", Value::of(manifest.model));
  root.set("step", Value::of(manifest.step));
  root.set("epoch", Value::of(manifest.epoch));
  root.set("step_in_epoch", Value::of(manifest.step_in_epoch));
  root.set("batch", Value::of(manifest.batch));
  root.set("samples", Value::of(manifest.samples));
  root.set("seed", Value::of(static_cast<int64_t>(manifest.seed)));
  root.set("optimizer", Value::of(manifest.optimizer));
  Value tensors = Value::list();
  for (const TensorEntry& tensor : manifest.tensors) {
    Value item = Value::map();
    item.set("name", Value::of(tensor.name));
    item.set("layer", Value::of(tensor.layer));
    item.set("dtype", Value::of(tensor.dtype));
    Value& shape = item.set("shape", Value::list());
    for (const int64_t size : tensor.shape) {
      shape.push(Value::of(size));
    }
    item.set("crc32", Value::of(static_cast<int64_t>(tensor.crc32)));
    tensors.push(std::move(item));
  }
  root.set("tensors", std::move(tensors));
  return root;
}

}  // namespace millrace
