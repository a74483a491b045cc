// Shared by cli's tests: temporary folders, and what a call prints on the two streams.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // mkdtemp
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/base/file.h"
#include "millrace/cli/common/options.h"

namespace millrace::cli {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "/millrace_cli_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr) << name;
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& file = "") const { return path_ + "/" + file; }
  std::string write(const std::string& file, const std::string& content) const {
    write_file_atomically(path(file), content);
    return path(file);
  }

 private:
  std::string path_;
};

struct Printed {
  std::string out;
  std::string err;
  int status = 0;
};

template <typename Call>
Printed printed_by(const Call& call) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Printed printed;
  printed.status = call();
  printed.out = ::testing::internal::GetCapturedStdout();
  printed.err = ::testing::internal::GetCapturedStderr();
  return printed;
}

// What parse() makes of a command line; `status` is -1 where the program would go on.
struct Parsed {
  Options options;
  Printed printed;
};

inline Parsed parsed(std::vector<std::string> words) {
  words.insert(words.begin(), "millrace");
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  Parsed result;
  result.printed = printed_by([&] {
    std::optional<int> exit_status;
    result.options = parse(static_cast<int>(argv.size()), argv.data(), exit_status);
    return exit_status.value_or(-1);
  });
  return result;
}

}  // namespace millrace::cli
