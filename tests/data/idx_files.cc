#include "tests/data/idx_files.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>

namespace millrace::testing {

Bytes idx_bytes(const std::vector<uint32_t>& words, const Bytes& content) {
  Bytes bytes;
  for (const uint32_t word : words) {
    for (const int shift : {24, 16, 8, 0}) {
      bytes.push_back(static_cast<uint8_t>(word >> shift));
    }
  }
  bytes.insert(bytes.end(), content.begin(), content.end());
  return bytes;
}

Bytes idx_images(uint32_t count, uint32_t rows, uint32_t columns, const Bytes& pixels) {
  return idx_bytes({0x803, count, rows, columns}, pixels);
}

Bytes idx_labels(const Bytes& labels) {
  return idx_bytes({0x801, static_cast<uint32_t>(labels.size())}, labels);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const Bytes& bytes) const {
  const std::string path = (path_ / name).string();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::string TemporaryFolder::write_compressed(const std::string& name, const Bytes& bytes) const {
  const std::string path = (path_ / name).string();
  const gzFile file = gzopen(path.c_str(), "wb");
  EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  EXPECT_EQ(gzclose(file), Z_OK);
  return path;
}

void TemporaryFolder::write_tiny_set() const {
  write_compressed("train-images-idx3-ubyte.gz", idx_images(2, 1, 2, {0, 255, 51, 102}));
  write_compressed("train-labels-idx1-ubyte.gz", idx_labels({9, 0}));
  write("t10k-images-idx3-ubyte", idx_images(1, 1, 2, {255, 0}));
  write("t10k-labels-idx1-ubyte", idx_labels({4}));
}

}  // namespace millrace::testing
