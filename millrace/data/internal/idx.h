// IDX files: the form in which MNIST and its successors are published, gzip-compressed or plain.
// A big-endian header (magic number, one size a dimension), then unsigned bytes. Free of libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::internal {

struct IdxImages {
  int64_t count = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<uint8_t> pixels;  // [count, rows, columns]
};

// Throw Error(kBadFile) naming the file when it cannot be read, its magic number is another, a size
// is out of range, or it holds fewer or more bytes than its header promises. A label must be below
// `num_classes`.
IdxImages read_idx_images(const std::string& path);
std::vector<uint8_t> read_idx_labels(const std::string& path, int num_classes);

}  // namespace millrace::internal
