#include "millrace/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

std::string reason(int error_number) { return std::generic_category().message(error_number); }

// Closes a descriptor on every way out; close() reports what close(2) says, once.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  int close() {
    const int result = ::close(fd_);
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Writes and flushes; returns 0 or the errno of what failed.
int fill(const std::string& path, std::string_view content) {
  Descriptor file(open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (file.get() < 0) {
    return errno;
  }
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return errno;
    }
    // A short write is no error yet: the next one says why, or goes on.
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  // Some file systems cannot flush one file (EINVAL); their data is as safe as they make it.
  if (::fsync(file.get()) != 0 && errno != EINVAL) {
    return errno;
  }
  // Quotas of network file systems may only show here.
  return file.close() == 0 ? 0 : errno;
}

}  // namespace

std::string read_file(const std::string& path, uint64_t max_bytes) {
  Descriptor file(open_retrying(path.c_str(), O_RDONLY));
  if (file.get() < 0) {
    const std::string hint = errno == ENOENT   ? "; check the path"
                             : errno == EACCES ? "; check its permissions"
                                               : "";
    throw Error(ErrorCode::kBadFile, fmt::format("cannot open: {}{}", reason(errno), hint))
        .in_file(path);
  }
  const auto refuse_size = [&]() {
    throw Error(ErrorCode::kBadFile,
                fmt::format("the file is larger than the {} that are read here",
                            format_bytes(static_cast<double>(max_bytes))))
        .in_file(path);
  };
  struct stat status = {};
  std::string content;
  if (::fstat(file.get(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      throw Error(ErrorCode::kBadFile, "expected a file, found a directory").in_file(path);
    }
    if (S_ISREG(status.st_mode)) {
      if (static_cast<uint64_t>(status.st_size) > max_bytes) {
        refuse_size();
      }
      content.reserve(static_cast<std::size_t>(status.st_size));
    }
  }
  // The size is a hint only: a pipe has none, and a file may grow while it is read.
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  std::string buffer(std::min<std::size_t>(kChunk, content.capacity() + 4096), '\0');
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw Error(ErrorCode::kBadFile, fmt::format("cannot read: {}", reason(errno))).in_file(path);
    }
    if (got == 0) {
      return content;
    }
    content.append(buffer.data(), static_cast<std::size_t>(got));
    if (content.size() > max_bytes) {
      refuse_size();
    }
  }
}

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::string temporary = fmt::format("{}.tmp.{}", path, ::getpid());
  int failure = fill(temporary, content);
  if (failure == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) {
    failure = errno;
  }
  if (failure != 0) {
    ::unlink(temporary.c_str());
    throw_write_error(path, failure);
  }
  sync_directory(std::filesystem::path(path).parent_path().string());
}

void sync_directory(const std::string& path) {
  Descriptor directory(open_retrying(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY));
  if (directory.get() >= 0) {
    ::fsync(directory.get());
  }
}

void make_directories(const std::string& path) {
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) {
    throw_write_error(path, failure.value());
  }
  // create_directories takes an existing file for done on some systems.
  if (!std::filesystem::is_directory(path, failure)) {
    throw_write_error(path, ENOTDIR);
  }
}

void throw_write_error(const std::string& path, int error_number) {
  const bool no_space = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  const char* hint = "; check the path and its permissions";
  if (error_number == EFBIG) {
    hint =
        "; the file passes the size limit of this process or file system: raise it (ulimit -f) or "
        "choose another place";
  } else if (no_space) {
    hint = "; free some space or choose another place";
  }
  throw Error(no_space ? ErrorCode::kNoSpace : ErrorCode::kBadFile,
              fmt::format("cannot write: {}{}", reason(error_number), hint))
      .in_file(path);
}

uint32_t crc32_of(const void* data, std::size_t bytes, uint32_t seed) {
  if (bytes == 0) {
    return seed;  // zlib would start over on a null pointer
  }
  return static_cast<uint32_t>(::crc32_z(seed, static_cast<const Bytef*>(data), bytes));
}

}  // namespace millrace
