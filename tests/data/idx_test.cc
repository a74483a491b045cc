#include "millrace/data/internal/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "millrace/base/error.h"
#include "tests/data/idx_files.h"

namespace millrace::internal {
namespace {

using millrace::testing::Bytes;
using millrace::testing::idx_bytes;
using millrace::testing::idx_images;
using millrace::testing::idx_labels;
using millrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::string& path, const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    EXPECT_EQ(error.file(), path);
    return error.what();
  }
  return "no error";
}
std::string images_refusal(const std::string& path) {
  return refusal(path, [&] { read_idx_images(path); });
}
std::string labels_refusal(const std::string& path) {
  return refusal(path, [&] { read_idx_labels(path, 10); });
}

TEST(Idx, ReadsCompressedAndPlain) {
  const TemporaryFolder folder;
  const Bytes pixels = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (const std::string& path : {folder.write("plain", idx_images(2, 2, 3, pixels)),
                                  folder.write_compressed("gz", idx_images(2, 2, 3, pixels))}) {
    const IdxImages images = read_idx_images(path);
    EXPECT_EQ(images.count, 2);
    EXPECT_EQ(images.rows, 2);
    EXPECT_EQ(images.columns, 3);
    EXPECT_EQ(images.pixels, pixels);
  }
  EXPECT_EQ(read_idx_labels(folder.write_compressed("labels", idx_labels({0, 9, 5})), 10),
            (Bytes{0, 9, 5}));
}

TEST(Idx, TruncatedFiles) {
  const TemporaryFolder folder;
  const Bytes good = idx_images(2, 2, 3, Bytes(12));
  EXPECT_THAT(images_refusal(folder.write("a", {good.begin(), good.end() - 1})),
              AllOf(HasSubstr("truncated"), HasSubstr("expected 12 bytes"), HasSubstr("found 11")));
  EXPECT_THAT(images_refusal(folder.write("b", {good.begin(), good.begin() + 9})),
              AllOf(HasSubstr("header of 16 bytes"), HasSubstr("found 9")));
  EXPECT_THAT(images_refusal(folder.write("c", {})), HasSubstr("found 0 bytes"));
  EXPECT_THAT(labels_refusal(folder.write("d", idx_bytes({0x801, 4}, {1, 2, 3}))),
              AllOf(HasSubstr("expected 4 bytes"), HasSubstr("found 3")));
}

TEST(Idx, CompressedDataThatBreaksOffAnywhere) {
  const TemporaryFolder folder;
  Bytes pixels(3000);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<uint8_t>(i * i * 31 >> 3);  // hard to compress
  }
  const std::string path = folder.write_compressed("whole", idx_images(30, 10, 10, pixels));
  EXPECT_EQ(read_idx_images(path).pixels, pixels);
  const auto size = std::filesystem::file_size(path);
  for (const auto left : {size - 12, size / 2, size / 10, std::uintmax_t{15}}) {
    std::filesystem::resize_file(path, left);
    EXPECT_THAT(images_refusal(path), HasSubstr("truncated")) << left << " bytes left";
  }
}

// Every byte of content is there, but not all of the checksum that vouches for them.
TEST(Idx, CompressedDataWithoutItsChecksum) {
  const TemporaryFolder folder;
  const std::string path = folder.write_compressed("whole", idx_images(2, 2, 3, Bytes(12)));
  const auto size = std::filesystem::file_size(path);
  for (std::uintmax_t missing = 1; missing <= 8; ++missing) {
    std::filesystem::resize_file(path, size - missing);
    EXPECT_THAT(images_refusal(path), HasSubstr("truncated")) << missing << " bytes missing";
  }
}

TEST(Idx, CompressedDataOfAnotherChecksum) {
  const TemporaryFolder folder;
  const std::string path = folder.write_compressed("x", idx_images(2, 2, 3, Bytes(12)));
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-8, std::ios::end);
  const int first = file.get();
  file.seekp(-8, std::ios::end);
  file.put(static_cast<char>(first ^ 1));
  file.close();
  EXPECT_THAT(images_refusal(path), HasSubstr("damaged"));
}

TEST(Idx, DamagedCompressedData) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("x", {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xff, 0xff, 0xff});
  EXPECT_THAT(images_refusal(path), HasSubstr("damaged"));
}

TEST(Idx, TooManyBytes) {
  const TemporaryFolder folder;
  EXPECT_THAT(images_refusal(folder.write("x", idx_images(1, 2, 2, Bytes(5)))),
              AllOf(HasSubstr("expected 4 bytes"), HasSubstr("more")));
}

TEST(Idx, WrongMagic) {
  const TemporaryFolder folder;
  EXPECT_THAT(images_refusal(folder.write("x", idx_labels(Bytes(20)))),
              AllOf(HasSubstr("0x00000803"), HasSubstr("0x00000801")));
  EXPECT_THAT(labels_refusal(folder.write("y", idx_images(1, 2, 2, Bytes(4)))),
              AllOf(HasSubstr("labels"), HasSubstr("0x00000801"), HasSubstr("0x00000803")));
}

TEST(Idx, SizesThatCannotBe) {
  const TemporaryFolder folder;
  EXPECT_THAT(images_refusal(folder.write("x", idx_images(0, 2, 2, {}))),
              AllOf(HasSubstr("dimension 1 of 3"), HasSubstr("found 0")));
  EXPECT_THAT(images_refusal(folder.write("y", idx_images(1, 2, 1U << 31, {}))),
              AllOf(HasSubstr("dimension 3 of 3"), HasSubstr("2147483648")));
  // Promises half a terabyte: refused for want of bytes, without first asking for that much memory.
  EXPECT_THAT(images_refusal(folder.write("z", idx_images(100'000'000, 64, 80, Bytes(10)))),
              AllOf(HasSubstr("truncated"), HasSubstr("512000000000"), HasSubstr("found 10")));
}

TEST(Idx, LabelBeyondTheClasses) {
  const TemporaryFolder folder;
  EXPECT_THAT(labels_refusal(folder.write("x", idx_labels({3, 9, 10, 1}))),
              AllOf(HasSubstr("label 2"), HasSubstr("0 to 9"), HasSubstr("found 10")));
}

TEST(Idx, MissingFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(images_refusal(folder.path() + "/none"), HasSubstr("cannot be opened"));
}

}  // namespace
}  // namespace millrace::internal
