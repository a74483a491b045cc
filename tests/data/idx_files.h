// Writes small IDX files, good and damaged, into a folder of the test's own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::testing {

using Bytes = std::vector<uint8_t>;

// A header of big-endian words followed by the content.
Bytes idx_bytes(const std::vector<uint32_t>& words, const Bytes& content);
Bytes idx_images(uint32_t count, uint32_t rows, uint32_t columns, const Bytes& pixels);
Bytes idx_labels(const Bytes& labels);

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  // Both return the file's path.
  std::string write(const std::string& name, const Bytes& bytes) const;
  std::string write_compressed(const std::string& name, const Bytes& bytes) const;
  // The four files of a data set: two training images of 1 x 2 pixels, one test image.
  void write_tiny_set() const;

 private:
  std::filesystem::path path_;
};

}  // namespace millrace::testing
