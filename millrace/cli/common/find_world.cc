#include "millrace/cli/common/find_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr const char* kMpi = "mpi";
constexpr const char* kGloo = "gloo";

Error wrong(const char* variable, std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message)).at_key(variable);
}

// The names of what one launcher sets.
struct Names {
  const char* launcher;  // WorldPlace::started_by
  const char* process;
  const char* processes;
  const char* local;
};

constexpr Names kMillrace = {"millrace", kProcessVariable, kProcessesVariable,
                             kLocalProcessVariable};
constexpr Names kTorch = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Names kOpenMpi = {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Names kSlurm = {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};
constexpr Names kSlurmStep = {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"};

class Finder {
 public:
  Finder(const WorldRequest& request, const GetVariable& get) : request_(request), get_(get) {}

  WorldPlace find() const {
    if (!request_.engine.empty()) {
      check_engine(request_.engine);
    }
    if (any(kMillrace)) {
      return of_millrace();
    }
    if (has(kTorch.process)) {
      return of_torch();
    }
    if (any(kOpenMpi)) {
      return of_open_mpi();
    }
    const Names& slurm = has(kSlurmStep.processes) ? kSlurmStep : kSlurm;
    if (has(slurm.process) && has(slurm.processes)) {
      return of_slurm(slurm);
    }
    if (has(kTorch.processes)) {
      throw missing(kTorch.process, kTorch.processes);
    }
    return {};
  }

 private:
  // An empty variable counts as none.
  std::string text(const char* variable) const {
    const char* value = get_(variable);
    return value == nullptr ? "" : value;
  }
  bool has(const char* variable) const { return !text(variable).empty(); }
  bool any(const Names& names) const { return has(names.process) || has(names.processes); }

  Error missing(const char* variable, const char* because_of) const {
    return wrong(variable,
                 fmt::format("expected a value, since {} = {} says that this is a process "
                             "of a world, found none; set it, or unset {}",
                             because_of, in_quotes(text(because_of)), because_of));
  }
  std::string need(const char* variable, const char* because_of) const {
    std::string value = text(variable);
    if (value.empty()) {
      throw missing(variable, because_of);
    }
    return value;
  }

  static int number(const char* variable, const std::string& text, int least, int most,
                    const std::string& meaning) {
    int value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < least || value > most) {
      throw wrong(variable, fmt::format("expected {}, a whole number from {} to {}, found {}",
                                        meaning, least, most, in_quotes(text)));
    }
    return value;
  }

  // Process, number of processes and local process; one process, and nothing else of the place is
  // to be filled.
  WorldPlace place_of(const Names& names) const {
    constexpr int kMostProcesses = 1 << 20;
    WorldPlace place;
    place.started_by = names.launcher;
    place.num_processes = number(names.processes, need(names.processes, names.process), 1,
                                 kMostProcesses, "the number of processes");
    place.process = number(names.process, need(names.process, names.processes), 0,
                           place.num_processes - 1, "this process of the world");
    if (has(names.local)) {
      place.local_process = number(names.local, text(names.local), 0, place.num_processes - 1,
                                   "this process of its host");
    }
    if (request_.processes != 0 && request_.processes != place.num_processes) {
      throw wrong(names.processes,
                  fmt::format("expected {} processes as --processes says, found a world of {}; "
                              "leave --processes out, or unset {} to start a world of its own",
                              request_.processes, place.num_processes, names.process));
    }
    return place;
  }

  // The store as --engine and the variables want it. mpi has none.
  void choose_engine(WorldPlace& place, const char* standard) const {
    place.engine = request_.engine.empty() ? standard : request_.engine;
  }
  void set_master(WorldPlace& place, const char* because_of) const {
    place.store_host = need("MASTER_ADDR", because_of);
    place.store_port = port("MASTER_PORT", need("MASTER_PORT", because_of), 1);
  }
  static int port(const char* variable, const std::string& text, int least) {
    return number(variable, text, least, 65535, "a port");
  }
  static void refuse_mpi(const WorldPlace& place, const char* variable) {
    if (place.engine == kMpi) {
      throw wrong(variable,
                  "expected processes that mpirun started, since the engine is mpi, found others; "
                  "start with `mpirun -n N millrace train ...`, or choose --engine gloo");
    }
  }

  WorldPlace of_millrace() const {
    WorldPlace place = place_of(kMillrace);
    if (place.num_processes == 1) {
      return place;
    }
    place.engine = need(kEngineVariable, kProcessVariable);
    check_engine(place.engine);
    if (!request_.engine.empty() && request_.engine != place.engine) {
      throw wrong(kEngineVariable, fmt::format("expected {} as --engine says, found {}",
                                               request_.engine, place.engine));
    }
    place.job_id = need(kJobVariable, kProcessVariable);
    const std::string store = need(kStoreVariable, kProcessVariable);
    const std::size_t colon = store.rfind(':');
    if (colon == std::string::npos || colon == 0) {
      throw wrong(kStoreVariable, fmt::format("expected host:port, found {}", in_quotes(store)));
    }
    place.store_host = store.substr(0, colon);
    place.store_port = port(kStoreVariable, store.substr(colon + 1), 0);
    if (has(kBoardVariable)) {
      place.board_fd = number(kBoardVariable, text(kBoardVariable), 0, 1 << 20, "a descriptor");
    } else if (place.store_port == 0) {
      throw missing(kBoardVariable, kStoreVariable);
    }
    return place;
  }

  WorldPlace of_torch() const {
    WorldPlace place = place_of(kTorch);
    const bool elastic = has("TORCHELASTIC_RUN_ID");
    if (!elastic) {
      place.started_by.clear();
    }
    if (place.num_processes == 1) {
      return place;
    }
    choose_engine(place, kGloo);
    refuse_mpi(place, kTorch.process);
    set_master(place, kTorch.process);
    if (elastic) {
      // The agent's store outlives the processes that it starts anew.
      place.store_served = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
      place.job_id = text("TORCHELASTIC_RUN_ID") + "." + text("TORCHELASTIC_RESTART_COUNT");
    }
    return place;
  }

  WorldPlace of_open_mpi() const {
    WorldPlace place = place_of(kOpenMpi);
    if (place.num_processes == 1) {
      return place;
    }
    choose_engine(place, kMpi);
    place.job_id = has("PMIX_NAMESPACE") ? text("PMIX_NAMESPACE") : text("OMPI_MCA_ess_base_jobid");
    if (place.engine != kMpi) {
      set_master(place, kOpenMpi.process);
    }
    return place;
  }

  WorldPlace of_slurm(const Names& names) const {
    WorldPlace place = place_of(names);
    if (place.num_processes == 1) {
      return place;
    }
    choose_engine(place, kGloo);
    const std::string job = need("SLURM_JOB_ID", names.process);
    const std::string step = has("SLURM_STEP_ID") ? text("SLURM_STEP_ID") : "0";
    place.job_id = job + "." + step;
    if (place.engine == kMpi) {
      return place;
    }
    if (has("MASTER_ADDR")) {
      place.store_host = text("MASTER_ADDR");
    } else {
      const char* list = has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
      try {
        place.store_host = first_host(need(list, names.process));
      } catch (Error& error) {
        throw error.at_key(list);
      }
    }
    place.store_port =
        has("MASTER_PORT") ? port("MASTER_PORT", text("MASTER_PORT"), 1) : slurm_port(job, step);
    return place;
  }

  // The same on every host, another for jobs and steps that follow each other; below the ports that
  // the system gives to outgoing connections.
  static int slurm_port(const std::string& job, const std::string& step) {
    constexpr int kFirst = 20000;
    constexpr int kPorts = 12000;
    constexpr int kMost = 2147483647;
    const int64_t job_number = number("SLURM_JOB_ID", job, 0, kMost, "the job");
    const int64_t step_number = number("SLURM_STEP_ID", step, 0, kMost, "the step");
    return kFirst + static_cast<int>((job_number + 7 * step_number) % kPorts);
  }

  const WorldRequest& request_;
  const GetVariable& get_;
};

}  // namespace

WorldPlace find_world(const WorldRequest& request, const GetVariable& get) {
  return Finder(request, get).find();
}

void check_engine(const std::string& engine) {
  const std::vector<std::string> names = {kGloo, "nccl", kMpi};
  if (std::find(names.begin(), names.end(), engine) == names.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected an engine between processes, {}; found {}{}",
                            join(names, ", "), in_quotes(engine), did_you_mean(engine, names)));
  }
}

std::string first_host(std::string_view host_list) {
  const auto refuse = [&](const char* found) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("expected a list of hosts such as node[01-04,7], found {}: {}", found,
                             in_quotes(host_list)));
  };
  std::string host;
  for (std::size_t i = 0; i < host_list.size() && host_list[i] != ','; ++i) {
    if (host_list[i] != '[') {
      host += host_list[i];
      continue;
    }
    const std::size_t close = host_list.find(']', i);
    if (close == std::string_view::npos) {
      throw refuse("a bracket that is not closed");
    }
    const std::string_view inside = host_list.substr(i + 1, close - i - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of("-,"));
    if (first.empty()) {
      throw refuse("an empty bracket");
    }
    host += first;
    i = close;
  }
  if (host.empty()) {
    throw refuse("none");
  }
  return host;
}

}  // namespace millrace::cli
