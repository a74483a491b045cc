#include "millrace/train/safetensors.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cstring>
#include <utility>

#include "millrace/base/document.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors payloads are little-endian");

constexpr std::size_t kLengthBytes = 8;

const char* safetensors_dtype(at::ScalarType dtype) {
  MILLRACE_CHECK(dtype == at::kFloat || dtype == at::kDouble);
  return dtype == at::kFloat ? "F32" : "F64";
}

}  // namespace

std::string encode_safetensors(const std::vector<NamedTensor>& tensors) {
  Value header = Value::map();
  int64_t offset = 0;
  for (const NamedTensor& item : tensors) {
    const auto bytes = static_cast<int64_t>(item.tensor.nbytes());
    Value shape = Value::list();
    for (const int64_t size : item.tensor.sizes()) {
      shape.push(Value::of(size));
    }
    Value entry = Value::map();
    entry.set("dtype", Value::of(safetensors_dtype(item.tensor.scalar_type())));
    entry.set("shape", std::move(shape));
    entry.set("data_offsets", Value::list({Value::of(offset), Value::of(offset + bytes)}));
    header.set(item.name, std::move(entry));
    offset += bytes;
  }
  std::string text = to_json(header, -1);
  // The payload starts at a multiple of 8 bytes, as readers that map the file expect.
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const auto length = static_cast<uint64_t>(text.size());
  std::string content;
  content.reserve(kLengthBytes + text.size() + static_cast<std::size_t>(offset));
  content.append(reinterpret_cast<const char*>(&length), kLengthBytes);
  content += text;
  for (const NamedTensor& item : tensors) {
    const at::Tensor tensor = item.tensor.contiguous();
    content.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  }
  return content;
}

std::vector<NamedTensor> decode_safetensors(const std::string& content, const std::string& file) {
  const auto bad = [&](const std::string& what) {
    return Error(ErrorCode::kBadFile, what + "; the file is damaged, use another checkpoint")
        .in_file(file);
  };
  uint64_t length = 0;
  if (content.size() < kLengthBytes) {
    throw bad("expected at least 8 bytes, found " + std::to_string(content.size()));
  }
  std::memcpy(&length, content.data(), kLengthBytes);
  if (length > content.size() - kLengthBytes) {
    throw bad("header of " + std::to_string(length) + " bytes in a file of " +
              std::to_string(content.size()));
  }
  const Document header = parse_json(std::string_view(content).substr(kLengthBytes, length), file);
  const std::string_view payload = std::string_view(content).substr(kLengthBytes + length);
  std::vector<NamedTensor> tensors;
  int64_t expected_begin = 0;
  Reader reader(header);
  for (const auto& [name, unused] : header.root.object) {
    if (name == "__metadata__") {
      reader.raw(name);
      continue;
    }
    Reader entry = reader.object(name);
    const std::string dtype = entry.text("dtype");
    const std::vector<int64_t> shape = entry.integers("shape");
    const std::vector<int64_t> offsets = entry.integers("data_offsets");
    entry.finish();
    if (dtype != "F32" && dtype != "F64") {
      throw bad(name + ": dtype " + dtype + ", expected F32 or F64");
    }
    int64_t elements = 1;
    for (const int64_t size : shape) {
      if (size < 0 || (size > 0 && elements > static_cast<int64_t>(payload.size()) / size)) {
        throw bad(name + ": a shape larger than the file");
      }
      elements *= size;
    }
    const int64_t bytes = elements * (dtype == "F32" ? 4 : 8);
    if (offsets.size() != 2 || offsets[0] != expected_begin || offsets[1] - offsets[0] != bytes ||
        offsets[1] > static_cast<int64_t>(payload.size())) {
      throw bad(name +
                ": byte range does not follow the tensor before it or does not fit its shape");
    }
    expected_begin = offsets[1];
    at::Tensor tensor = at::empty(shape, dtype == "F32" ? at::kFloat : at::kDouble);
    std::memcpy(tensor.data_ptr(), payload.data() + offsets[0], static_cast<std::size_t>(bytes));
    tensors.push_back({name, "", std::move(tensor)});
  }
  if (expected_begin != static_cast<int64_t>(payload.size())) {
    throw bad("expected " + std::to_string(expected_begin) + " bytes of tensors, found " +
              std::to_string(payload.size()));
  }
  return tensors;
}

}  // namespace millrace
