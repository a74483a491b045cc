#include "millrace/cli/torch/doctor_links.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "millrace/base/error.h"
#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/common/launch.h"
#include "millrace/cli/common/mpirun.h"
#include "millrace/cli/torch/membership.h"
#include "millrace/comm/engines.h"
#include "millrace/profiler/measure_cluster.h"

namespace millrace::cli {
namespace {

constexpr double kTimeoutS = 60;

// A folder for what a process that we start tells us, gone with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "millrace-doctor-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      throw_write_error(path, errno);
    }
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

NetworkLevel measure_engine(const std::string& engine) {
  const TemporaryFolder folder;
  const std::string file = folder.file("cluster.toml");
  LaunchPlan plan;
  plan.program = std::filesystem::canonical("/proc/self/exe").string();
  plan.argv = {"millrace", "doctor", "--measure", "--output", file};
  plan.num_processes = 2;
  plan.engine = engine;
  if (launch(plan) != 0) {
    throw Error(ErrorCode::kInterrupted, "interrupted while messages were measured");
  }
  return cluster_from(read_document(file)).levels.back();
}

}  // namespace

std::vector<EngineLink> measure_links_between_processes() {
  std::vector<EngineLink> links;
  for (const std::string& engine : built_engines()) {
    if (engine == "inproc") {
      continue;  // it joins no processes
    }
    EngineLink link;
    link.engine = engine;
    try {
      link.level = measure_engine(engine);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) {
        throw;
      }
      link.failure = error.message();
    }
    links.push_back(std::move(link));
  }
  return links;
}

int measure_this_world(const DoctorArgs& args, const WorldPlace& place, Output& output) {
  Membership membership(place);
  // Who started this reads the file and has words of its own.
  const bool asked_by_us = place.board_fd >= 0 || std::getenv(kBoardPathVariable) != nullptr;
  if (!membership.leads() || asked_by_us) {
    output.silence();
  }
  try {
    membership.join(place.num_processes, kTimeoutS, "doctor");
    const Cluster cluster = measure_cluster(*membership.world(), machine_name());
    if (membership.leads()) {
      write_file_atomically(args.output, to_toml(to_value(cluster)));
    }
    membership.leave();
    const NetworkLevel& level = cluster.levels.back();
    output.text(fmt::format("{} processes by {}: {} and {}/s; written to {}\n", place.num_processes,
                            place.engine, format_seconds(level.latency_s),
                            format_bytes(level.bandwidth_bytes_per_s), args.output));
    Value value = Value::map();
    value.set("machine", Value::of(machine_name()));
    value.set("cluster", to_value(cluster));
    output.document(value);
    return 0;
  } catch (const Error& error) {
    if (membership.fail(error)) {
      return exit_status_of(error);
    }
    throw;
  }
}

}  // namespace millrace::cli
