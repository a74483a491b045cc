#include "millrace/data/internal/idx.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

constexpr uint32_t kImageMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr uint32_t kLabelMagic = 0x00000801;  // unsigned bytes, one dimension
constexpr uint32_t kMaxCount = 100'000'000;
constexpr uint32_t kMaxExtent = 65'536;

Error bad_file(const std::string& path, const std::string& message) {
  return std::move(Error(ErrorCode::kBadFile, message).in_file(path));
}

class GzFile {
 public:
  explicit GzFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) {
      throw bad_file(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
    }
    gzbuffer(file_.get(), 1 << 17);
  }

  // Reads up to `bytes`; fewer only at the end of the file.
  std::size_t read(uint8_t* out, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
      const auto ask = static_cast<unsigned>(std::min<std::size_t>(bytes - done, 1U << 30));
      const int got = gzread(file_.get(), out + done, ask);
      if (got < 0) {
        int code = Z_OK;
        const char* text = gzerror(file_.get(), &code);
        if (code == Z_BUF_ERROR) {  // the compressed data breaks off: what there is has been given
          return done;
        }
        throw bad_file(path_,
                       fmt::format("damaged: {}", code == Z_ERRNO ? std::strerror(errno) : text));
      }
      if (got == 0) {
        break;
      }
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  // After a read at the end: whether compressed data lacks its last bytes, the checksum, without
  // which zlib has vouched for nothing. It reports that as the end of the file, not as an error.
  bool breaks_off() const {
    int code = Z_OK;
    gzerror(file_.get(), &code);
    return code == Z_BUF_ERROR;
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

uint32_t big_endian(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 |
         static_cast<uint32_t>(bytes[2]) << 8 | static_cast<uint32_t>(bytes[3]);
}

// Reads the header: checks the magic number, returns the sizes.
std::vector<int64_t> read_header(GzFile& file, const std::string& path, uint32_t magic,
                                 const char* what) {
  const std::size_t dimensions = magic & 0xFF;
  uint8_t bytes[16];
  const std::size_t expected = 4 + 4 * dimensions;
  const std::size_t found = file.read(bytes, expected);
  if (found < expected) {
    throw bad_file(path, fmt::format("truncated: expected a header of {} bytes, found {} bytes",
                                     expected, found));
  }
  if (big_endian(bytes) != magic) {
    throw bad_file(path, fmt::format("not an IDX file of {}: expected magic number {:#010x}, "
                                     "found {:#010x}",
                                     what, magic, big_endian(bytes)));
  }
  std::vector<int64_t> sizes;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const uint32_t size = big_endian(bytes + 4 + 4 * d);
    const uint32_t most = d == 0 ? kMaxCount : kMaxExtent;
    if (size < 1 || size > most) {
      throw bad_file(path, fmt::format("dimension {} of {}: expected 1 to {}, found {}", d + 1,
                                       dimensions, most, size));
    }
    sizes.push_back(size);
  }
  return sizes;
}

// Reads exactly the rest of the file. Grows as bytes arrive: a damaged header may promise anything.
std::vector<uint8_t> read_rest(GzFile& file, const std::string& path, uint64_t expected) {
  constexpr uint64_t kBlock = 1 << 24;
  std::vector<uint8_t> data;
  while (data.size() < expected) {
    const std::size_t old = data.size();
    const auto ask = static_cast<std::size_t>(std::min(kBlock, expected - old));
    data.resize(old + ask);
    const std::size_t got = file.read(data.data() + old, ask);
    if (got < ask) {
      throw bad_file(path, fmt::format("truncated: expected {} bytes after the header, found {}",
                                       expected, old + got));
    }
  }
  uint8_t extra = 0;
  if (file.read(&extra, 1) != 0) {
    throw bad_file(path, fmt::format("expected {} bytes after the header, found more", expected));
  }
  if (file.breaks_off()) {
    throw bad_file(path, "truncated: the compressed data breaks off before its checksum");
  }
  return data;
}

}  // namespace

IdxImages read_idx_images(const std::string& path) {
  GzFile file(path);
  const std::vector<int64_t> sizes = read_header(file, path, kImageMagic, "images");
  IdxImages images{sizes[0], sizes[1], sizes[2], {}};
  // At most 1e8 * 2^32: fits 64 bits.
  images.pixels = read_rest(file, path, static_cast<uint64_t>(sizes[0] * sizes[1] * sizes[2]));
  return images;
}

std::vector<uint8_t> read_idx_labels(const std::string& path, int num_classes) {
  GzFile file(path);
  const std::vector<int64_t> sizes = read_header(file, path, kLabelMagic, "labels");
  std::vector<uint8_t> labels = read_rest(file, path, static_cast<uint64_t>(sizes[0]));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= num_classes) {
      throw bad_file(path, fmt::format("label {}: expected 0 to {}, found {}", i, num_classes - 1,
                                       static_cast<int>(labels[i])));
    }
  }
  return labels;
}

}  // namespace millrace::internal
