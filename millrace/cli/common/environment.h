// What the launcher takes from and hands on with the environment.
#pragma once

#include <string>
#include <vector>

namespace millrace::cli {

std::string host_name();  // "?" where it has none

// Our environment with some variables of its own ("NAME=value"), and without a board of another
// launcher.
std::vector<std::string> environment_with(const std::vector<std::string>& variables);

// The path of a program by PATH; one with a slash is a path. Throws Error(kUnsupported) that says
// what to install.
std::string find_in_path(const std::string& program);

}  // namespace millrace::cli
