#include "millrace/base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/base/caught.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "millrace-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // Names in the folder: a failed write must leave none of its own.
  std::size_t num_entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(FileTest, WritesAndReadsAnyBytes) {
  const std::string big(3'500'000, 'x');
  for (const std::string& content :
       {std::string(), std::string("a\0b\n\xff", 5), std::string("text\n"), big}) {
    write_file_atomically(path("a"), content);
    EXPECT_EQ(read_file(path("a")), content);
    EXPECT_EQ(num_entries(), 1u);
  }
}

TEST_F(FileTest, ReplacesAFileThatAReaderHoldsOpen) {
  write_file_atomically(path("a"), "old");
  std::FILE* reader = std::fopen(path("a").c_str(), "r");
  ASSERT_NE(reader, nullptr);
  write_file_atomically(path("a"), "new");
  char text[4] = {};
  EXPECT_EQ(std::fread(text, 1, 3, reader), 3u);
  std::fclose(reader);
  EXPECT_STREQ(text, "old") << "the reader sees one whole file";
  EXPECT_EQ(read_file(path("a")), "new");
}

TEST_F(FileTest, NamesWhatCannotBeRead) {
  const Error missing = caught([&] { read_file(path("none")); });
  EXPECT_EQ(missing.code(), ErrorCode::kBadFile);
  EXPECT_EQ(missing.file(), path("none"));
  EXPECT_NE(missing.message().find("No such file"), std::string::npos);
  const Error directory = caught([&] { read_file(folder_.string()); });
  EXPECT_EQ(directory.code(), ErrorCode::kBadFile);
  EXPECT_NE(directory.message().find("directory"), std::string::npos);
}

TEST_F(FileTest, RefusesMoreThanItMayRead) {
  write_file_atomically(path("a"), "12345");
  EXPECT_EQ(read_file(path("a"), 5), "12345");
  EXPECT_EQ(caught([&] { read_file(path("a"), 4); }).code(), ErrorCode::kBadFile);
  // A device has no size to look at; reading must still end.
  EXPECT_EQ(caught([&] { read_file("/dev/zero", 1 << 20); }).code(), ErrorCode::kBadFile);
}

TEST_F(FileTest, FailedWritesLeaveTheTargetAlone) {
  const Error missing = caught([&] { write_file_atomically(path("no/such/folder/a"), "x"); });
  EXPECT_EQ(missing.code(), ErrorCode::kBadFile);
  EXPECT_EQ(missing.file(), path("no/such/folder/a"));
  fs::create_directory(path("folder"));
  EXPECT_EQ(caught([&] { write_file_atomically(path("folder"), "x"); }).code(),
            ErrorCode::kBadFile);
  EXPECT_TRUE(fs::is_directory(path("folder")));
  EXPECT_EQ(num_entries(), 1u);
}

// A size limit of the process stands for a full disk: write(2) first comes up short, then fails.
TEST_F(FileTest, ReportsWantOfSpaceAndCleansUp) {
  write_file_atomically(path("a"), "as it was");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {10000, 10000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      ::_exit(10);
    }
    try {
      write_file_atomically(path("a"), std::string(30000, 'x'));
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::kNoSpace && error.file() == path("a") ? 0 : 11);
    }
    ::_exit(12);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_file(path("a")), "as it was");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(FileTest, MapsErrnoToCodes) {
  for (const int number : {ENOSPC, EDQUOT, EFBIG}) {
    const Error error = caught([&] { throw_write_error("p", number); });
    EXPECT_EQ(error.code(), ErrorCode::kNoSpace) << number;
    EXPECT_EQ(error.file(), "p");
  }
  for (const int number : {EACCES, EROFS, EIO, ENOENT}) {
    EXPECT_EQ(caught([&] { throw_write_error("p", number); }).code(), ErrorCode::kBadFile)
        << number;
  }
}

TEST_F(FileTest, MakesDirectories) {
  make_directories(path("a/b/c"));
  EXPECT_TRUE(fs::is_directory(path("a/b/c")));
  EXPECT_NO_THROW(make_directories(path("a/b/c")));
  EXPECT_NO_THROW(make_directories(path("a/b/c/")));
  write_file_atomically(path("file"), "");
  EXPECT_EQ(caught([&] { make_directories(path("file")); }).code(), ErrorCode::kBadFile);
  EXPECT_EQ(caught([&] { make_directories(path("file/sub")); }).code(), ErrorCode::kBadFile);
}

TEST_F(FileTest, Crc32IsZlibs) {
  EXPECT_EQ(crc32_of("123456789", 9), 0xCBF43926u);  // the check value of CRC-32
  EXPECT_EQ(crc32_of(nullptr, 0), 0u);
  const uint32_t start = crc32_of("1234", 4);
  EXPECT_EQ(crc32_of("56789", 5, start), 0xCBF43926u);
  EXPECT_EQ(crc32_of(nullptr, 0, start), start) << "nothing more changes nothing";
}

}  // namespace
}  // namespace millrace
