#include "millrace/train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <tuple>
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
constexpr const char* kPrefix = "step-";
constexpr const char* kHiddenPrefix = ".step-";

const char* dtype_name(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? "float64" : "float32";
}

TensorEntry entry_of(const NamedTensor& item) {
  const at::Tensor tensor = item.tensor.contiguous();
  return {item.name, item.layer, dtype_name(tensor), tensor.sizes().vec(),
          crc32_of(tensor.data_ptr(), tensor.nbytes())};
}

// Hidden folders hold half a checkpoint or one on its way out: their process was killed.
void remove_leftovers(const fs::path& dir) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ignored)) {
    if (entry.path().filename().string().rfind(kHiddenPrefix, 0) == 0) {
      fs::remove_all(entry.path(), ignored);
    }
  }
}

// Removes all but the `keep` checkpoints that were written last; `latest` is one of those that
// stay.
void remove_old(const fs::path& dir, const std::string& latest, int64_t keep) {
  struct Found {
    fs::file_time_type written;
    std::string name;
  };
  std::vector<Found> others;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    // A folder of another name, such as a copy that somebody put aside, is not ours.
    const std::string number = name.rfind(kPrefix, 0) == 0 ? name.substr(std::strlen(kPrefix)) : "";
    if (number.size() >= 8 && number.find_first_not_of("0123456789") == std::string::npos &&
        name != latest) {
      others.push_back({entry.last_write_time(ignored), name});
    }
  }
  std::sort(others.begin(), others.end(), [](const Found& a, const Found& b) {
    return std::tie(a.written, a.name) > std::tie(b.written, b.name);
  });
  for (std::size_t i = static_cast<std::size_t>(keep - 1); i < others.size(); ++i) {
    // Hidden first: a kill must not leave half of a checkpoint under a checkpoint's name.
    const fs::path hidden = dir / ("." + others[i].name + ".old");
    fs::rename(dir / others[i].name, hidden, ignored);
    fs::remove_all(hidden, ignored);
  }
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
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
      throw_write_error(target.string(), errno);
    }
    // A file system that cannot swap (NFS, some of FUSE's): one after the other.
    const fs::path old = target.parent_path() / ("." + target.filename().string() + ".old");
    std::error_code failed;
    fs::rename(target, old, failed);
    if (!failed) {
      fs::rename(aside, target, failed);
    }
    if (failed) {
      throw_write_error(target.string(), failed.value());
    }
    fs::remove_all(old, ignored);
    return;
  }
  fs::remove_all(aside, ignored);
}

}  // namespace

std::string save_checkpoint(const std::string& dir, CheckpointManifest manifest,
                            const std::vector<NamedTensor>& tensors, int64_t keep) {
  manifest.tensors.clear();
  for (const NamedTensor& item : tensors) {
    manifest.tensors.push_back(entry_of(item));
  }
  const std::string name = fmt::format("{}{:08d}", kPrefix, manifest.step);
  const fs::path target = fs::path(dir) / name;
  const fs::path aside = fs::path(dir) / fmt::format(".{}.{}", name, ::getpid());
  make_directories(dir);
  remove_leftovers(dir);
  std::error_code ignored;
  const fs::path latest = fs::path(dir) / kLatest;
  if (keep > 0 && fs::exists(latest, ignored)) {
    // Before the new one too: processes killed one after the other between their save and its
    // removal of the oldest would else fill the disk.
    remove_old(dir, trim(read_file(latest.string())), keep);
  }
  try {
    make_directories(aside.string());
    write_file_atomically((aside / kPayload).string(), encode_safetensors(tensors));
    write_file_atomically((aside / kManifest).string(), to_json(to_value(manifest)) + "\n");
    put_in_place(aside, target);
    sync_directory(dir);
    write_file_atomically(latest.string(), name + "\n");
  } catch (...) {
    fs::remove_all(aside, ignored);
    throw;
  }
  if (keep > 0) {
    remove_old(dir, name, keep);
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
  std::map<std::string, const NamedTensor*> saved;
  for (const NamedTensor& tensor : checkpoint.tensors) {
    saved[tensor.name] = &tensor;
  }
  std::vector<std::string> missing;
  std::vector<std::string> different;
  for (const NamedTensor& own : session.state()) {
    const auto found = saved.find(own.name);
    if (found == saved.end()) {
      missing.push_back(own.name);
      continue;
    }
    const at::Tensor& tensor = found->second->tensor;
    if (!tensor.sizes().equals(own.tensor.sizes()) ||
        tensor.scalar_type() != own.tensor.scalar_type()) {
      different.push_back(own.name);
    }
    saved.erase(found);
  }
  std::vector<std::string> extra;
  extra.reserve(saved.size());
  for (const auto& item : saved) {
    extra.push_back(item.first);
  }
  // Where another process leads, that one sees all tensors and judges.
  if (session.world().leads() && (!missing.empty() || !extra.empty() || !different.empty())) {
    throw Error(
        ErrorCode::kBadFile,
        fmt::format("the checkpoint does not fit this run: it lacks [{}], has besides [{}], "
                    "and has in another shape or dtype [{}]",
                    fmt::join(missing, ", "), fmt::join(extra, ", "), fmt::join(different, ", ")));
  }
  for (const NamedTensor& tensor : checkpoint.tensors) {
    session.load(tensor.name, tensor.tensor);
  }
}

}  // namespace millrace
