// Processes on other machines: the file of hosts, and the command that ssh hands to each host's
// shell. Pure functions; used by launch.
#pragma once

#include <string>
#include <vector>

namespace millrace::cli {

struct Host {
  std::string name;  // as ssh takes it: host, or user@host
  int slots = 1;     // processes that it takes
};

// One host a line, `slots=N` behind it, `#` begins a comment. Throws Error(kBadFile) with file and
// line for anything else, a host named twice, and a file without hosts.
std::vector<Host> parse_hosts(const std::string& text, const std::string& file);

// Where a process runs: its host, and its number there. Hosts are filled in order.
struct HostPlace {
  std::string host;
  int local_process = 0;
};
// Throws Error(kInvalidArgument) when the hosts have fewer slots.
std::vector<HostPlace> place_on_hosts(const std::vector<Host>& hosts, int num_processes);
int total_slots(const std::vector<Host>& hosts);

// One word of a POSIX shell.
std::string shell_quoted(const std::string& word);

// What the remote shell runs: the program, in `folder`, under a small shell that reads its standard
// input, sends the program each signal named there (a line "TERM"), and kills it when the input
// closes, so that nothing outlives the connection. Returns with the program's status, 128 plus the
// signal for one that was killed.
std::string remote_command(const std::string& folder, const std::vector<std::string>& variables,
                           const std::string& program, const std::vector<std::string>& arguments);

}  // namespace millrace::cli
