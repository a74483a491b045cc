#include "millrace/train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/train/safetensors.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kPayload = "tensors.safetensors";
constexpr const char* kLatest = "latest";

const char* dtype_name(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? "float64" : "float32";
}

TensorEntry entry_of(const NamedTensor& item) {
  const at::Tensor tensor = item.tensor.contiguous();
  return {item.name, item.layer, dtype_name(tensor), tensor.sizes().vec(),
          crc32_of(tensor.data_ptr(), tensor.nbytes())};
}

// A checkpoint of this very step can be there already after a resume. Then the two folders swap
// names in one step, so that `latest` never names a folder that is not there.
void put_in_place(const fs::path& aside, const fs::path& target) {
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    std::error_code failed;
    fs::rename(aside, target, failed);
    if (failed) {
      throw_write_error(target.string(), failed.value());
    }
    return;
  }
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    throw_write_error(target.string(), errno);
  }
  fs::remove_all(aside, ignored);
}

}  // namespace

std::string save_checkpoint(const std::string& dir, CheckpointManifest manifest,
                            const std::vector<NamedTensor>& tensors) {
  manifest.tensors.clear();
  for (const NamedTensor& item : tensors) {
    manifest.tensors.push_back(entry_of(item));
  }
  const std::string name = fmt::format("step-{:08d}", manifest.step);
  const fs::path target = fs::path(dir) / name;
  const fs::path aside = fs::path(dir) / fmt::format(".{}.{}", name, ::getpid());
  make_directories(dir);
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  try {
    make_directories(aside.string());
    write_file_atomically((aside / kPayload).string(), encode_safetensors(tensors));
    write_file_atomically((aside / kManifest).string(), to_json(to_value(manifest)) + "\n");
    put_in_place(aside, target);
    write_file_atomically((fs::path(dir) / kLatest).string(), name + "\n");
  } catch (...) {
    fs::remove_all(aside, ignored);
    throw;
  }
  return target.string();
}

std::string resolve_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / kManifest, ignored)) {
    return path;
  }
  for (const fs::path& dir : {fs::path(path), fs::path(path) / "checkpoints"}) {
    if (fs::exists(dir / kLatest, ignored)) {
      return (dir / trim(read_file((dir / kLatest).string()))).string();
    }
  }
  throw Error(ErrorCode::kBadFile,
              "no checkpoint here: expected manifest.json, or latest, or checkpoints/latest")
      .in_file(path);
}

LoadedCheckpoint read_checkpoint(const std::string& path) {
  const std::string manifest_file = (fs::path(path) / kManifest).string();
  const std::string payload_file = (fs::path(path) / kPayload).string();
  LoadedCheckpoint checkpoint;
  checkpoint.manifest = manifest_from(read_document(manifest_file));
  checkpoint.tensors = decode_safetensors(read_file(payload_file), payload_file);
  const std::vector<TensorEntry>& entries = checkpoint.manifest.tensors;
  if (entries.size() != checkpoint.tensors.size()) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("holds {} tensors, but the manifest names {}; use another checkpoint",
                            checkpoint.tensors.size(), entries.size()))
        .in_file(payload_file);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    checkpoint.tensors[i].layer = entries[i].layer;
    const TensorEntry found = entry_of(checkpoint.tensors[i]);
    if (found != entries[i]) {
      throw Error(
          ErrorCode::kBadFile,
          fmt::format("tensor {}: expected {} {} with checksum {:08x}, found {} {} with "
                      "{:08x}; the file is damaged, use another checkpoint",
                      entries[i].name, entries[i].dtype, fmt::join(entries[i].shape, "x"),
                      entries[i].crc32, found.dtype, fmt::join(found.shape, "x"), found.crc32))
          .in_file(payload_file);
    }
  }
  return checkpoint;
}

void load_into(const LoadedCheckpoint& checkpoint, Session& session) {
  std::vector<std::string> missing;
  for (const NamedTensor& own : session.state()) {
    const bool there = std::any_of(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                                   [&](const NamedTensor& t) { return t.name == own.name; });
    if (!there) {
      missing.push_back(own.name);
    }
  }
  std::vector<std::string> extra;
  for (const NamedTensor& tensor : checkpoint.tensors) {
    if (missing.empty() && !session.load(tensor.name, tensor.tensor)) {
      extra.push_back(tensor.name);
    }
  }
  if (!missing.empty() || !extra.empty()) {
    throw Error(
        ErrorCode::kBadFile,
        fmt::format("the checkpoint does not fit this run: it lacks [{}] and has besides [{}]",
                    fmt::join(missing, ", "), fmt::join(extra, ", ")));
  }
}

}  // namespace millrace
