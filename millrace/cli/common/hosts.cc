#include "millrace/cli/common/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <system_error>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::string_view kSlots = "slots=";

// A background process would read nothing from standard input and wait for no signal, hence the
// copy of it for the second one, which stands between the connection and the program.
constexpr const char* kWatch = R"(exec 3<&0
"$@" </dev/null 3<&- &
program=$!
{ while read -r name; do kill -s "$name" "$program"; done; kill -s KILL "$program"; } <&3 >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait "$program"
status=$?
kill -s KILL "$watcher"
wait "$watcher" 2>/dev/null
exit "$status")";

Host parse_host(const std::vector<std::string>& words) {
  const auto refuse = [](const std::string& message) {
    return Error(ErrorCode::kBadFile, message);
  };
  Host host;
  host.name = words[0];
  if (host.name[0] == '-' || host.name.find('=') != std::string::npos) {
    throw refuse(fmt::format("expected a host's name, found {}", in_quotes(host.name)));
  }
  if (words.size() > 2) {
    throw refuse(fmt::format("expected a host and slots=N, found {} too", in_quotes(words[2])));
  }
  if (words.size() == 2) {
    const std::string_view word = words[1];
    const char* end = word.data() + word.size();
    const std::size_t skip = std::min(kSlots.size(), word.size());
    const auto [stop, error] = std::from_chars(word.data() + skip, end, host.slots);
    if (word.substr(0, skip) != kSlots || error != std::errc() || stop != end || host.slots < 1) {
      throw refuse(fmt::format("expected slots=N with a whole number of 1 or more, found {}",
                               in_quotes(word)));
    }
  }
  return host;
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& text, const std::string& file) {
  std::vector<Host> hosts;
  int number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    std::istringstream stream(line.substr(0, line.find('#')));
    std::vector<std::string> words;
    for (std::string word; stream >> word;) {
      words.push_back(word);
    }
    if (words.empty()) {
      continue;
    }
    try {
      hosts.push_back(parse_host(words));
    } catch (Error& error) {
      throw error.in_file(file, number);
    }
    const auto same = [&](const Host& host) { return host.name == hosts.back().name; };
    if (std::count_if(hosts.begin(), hosts.end(), same) > 1) {
      throw Error(ErrorCode::kBadFile, fmt::format("the host {} stands here twice; give it slots=N",
                                                   in_quotes(hosts.back().name)))
          .in_file(file, number);
    }
  }
  if (hosts.empty()) {
    throw Error(ErrorCode::kBadFile, "expected one host a line, found none").in_file(file);
  }
  return hosts;
}

int total_slots(const std::vector<Host>& hosts) {
  int slots = 0;
  for (const Host& host : hosts) {
    slots += host.slots;
  }
  return slots;
}

std::vector<HostPlace> place_on_hosts(const std::vector<Host>& hosts, int num_processes) {
  std::vector<HostPlace> places;
  for (const Host& host : hosts) {
    for (int i = 0; i < host.slots && static_cast<int>(places.size()) < num_processes; ++i) {
      places.push_back({host.name, i});
    }
  }
  if (static_cast<int>(places.size()) < num_processes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected hosts with {} slots in all, as --processes says, found {}; "
                            "give hosts more slots=N",
                            num_processes, places.size()));
  }
  return places;
}

std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (char letter : word) {
    quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return quoted + "'";
}

std::string remote_command(const std::string& folder, const std::vector<std::string>& variables,
                           const std::string& program, const std::vector<std::string>& arguments) {
  std::string command = fmt::format("cd {} && exec env", shell_quoted(folder));
  for (const std::string& variable : variables) {
    command += " " + shell_quoted(variable);
  }
  command += fmt::format(" sh -c {} sh {}", shell_quoted(kWatch), shell_quoted(program));
  for (const std::string& argument : arguments) {
    command += " " + shell_quoted(argument);
  }
  return command;
}

}  // namespace millrace::cli
