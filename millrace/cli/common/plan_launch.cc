#include "millrace/cli/common/plan_launch.h"

#include <fmt/format.h>

#include <charconv>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/file.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

Error wrong(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

void check_workers(int num_workers, int num_processes) {
  if (num_workers < num_processes) {
    throw wrong(
        fmt::format("expected at least one worker for each process, found {} and {} "
                    "processes; add -n {}, or use fewer --processes",
                    num_workers == 1 ? "1 worker" : fmt::format("{} workers", num_workers),
                    num_processes, num_processes));
  }
}

// The port of a store on another host, which cannot be asked for a free one.
int remote_port(const std::string& chosen) {
  if (chosen.empty()) {
    std::random_device random;
    return std::uniform_int_distribution<int>(20000, 59999)(random);
  }
  int port = 0;
  const char* end = chosen.data() + chosen.size();
  const auto [stop, error] = std::from_chars(chosen.data(), end, port);
  if (error != std::errc() || stop != end || port < 1 || port > 65535) {
    throw wrong(fmt::format("expected a port from 1 to 65535, found {}", in_quotes(chosen)))
        .at_key("MASTER_PORT");
  }
  return port;
}

}  // namespace

std::optional<LaunchPlan> plan_launch(const TrainArgs& args, int num_workers,
                                      const GetVariable& get) {
  const WorldPlace place = find_world({args.engine, args.processes.value_or(0)}, get);
  if (place.num_processes > 1) {
    if (!args.hosts.empty() && place.started_by != "millrace") {
      throw wrong(fmt::format(
          "--hosts starts processes, but this is one of {} that {} started; "
          "leave one of the two out",
          place.num_processes, place.started_by.empty() ? "somebody" : place.started_by));
    }
    check_workers(num_workers, place.num_processes);
    return std::nullopt;
  }
  LaunchPlan plan;
  if (!args.hosts.empty()) {
    plan.hosts = parse_hosts(read_file(args.hosts), args.hosts);
    plan.num_processes = args.processes.value_or(total_slots(plan.hosts));
    place_on_hosts(plan.hosts, plan.num_processes);  // refuses what does not fit
    const char* port = get("MASTER_PORT");
    plan.store_port = remote_port(port == nullptr ? "" : port);
    if (const char* shell = get("MILLRACE_SSH"); shell != nullptr && *shell != '\0') {
      plan.remote_shell = shell;
    }
  } else {
    plan.num_processes = args.processes.value_or(1);
    if (plan.num_processes == 1) {
      if (!args.engine.empty() && !args.processes) {
        throw wrong("--engine joins processes, but there is one; add --processes N");
      }
      return std::nullopt;
    }
  }
  check_workers(num_workers, plan.num_processes);
  if (!args.engine.empty()) {
    plan.engine = args.engine;
  }
  return plan;
}

}  // namespace millrace::cli
