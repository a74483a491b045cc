#include "millrace/cli/common/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "millrace/base/error.h"

namespace millrace::cli {

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced =
        text.substr(0, 9) == "MILLRACE_" &&
        (name == "MILLRACE_BOARD_FD=" || name == "MILLRACE_BOARD_PATH=" ||
         std::any_of(variables.begin(), variables.end(), [&](const std::string& variable) {
           return std::string_view(variable).substr(0, name.size()) == name;
         }));
    if (!replaced) {
      environment.emplace_back(text);
    }
  }
  return environment;
}

std::string find_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    return program;
  }
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    std::string candidate = fmt::format("{}/{}", folder, program);
    if (::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("starting these processes needs {}, which is not in PATH; apt-get install "
                  "{}",
                  program, program == "mpirun" ? "openmpi-bin" : "openssh-client"));
}

}  // namespace millrace::cli
