#include "millrace/comm/engines.h"

#include <fmt/format.h>

#include <utility>

#include "millrace/base/text.h"
#ifdef MILLRACE_HAVE_C10D
#include "millrace/comm/c10d/gloo_wire.h"
#endif
#ifdef MILLRACE_HAVE_MPI
#include "millrace/comm/mpi/mpi_wire.h"
#endif

namespace millrace {
namespace {

std::unique_ptr<Wire> join_wire(const WorldPlace& place, [[maybe_unused]] const PortExchange& ports,
                                [[maybe_unused]] double timeout_s) {
#ifdef MILLRACE_HAVE_C10D
  if (place.engine == "gloo") {
    return join_gloo(place, ports, timeout_s);
  }
#endif
#ifdef MILLRACE_HAVE_MPI
  if (place.engine == "mpi") {
    return join_mpi(place, timeout_s);
  }
#endif
  std::string remedy = "install libgloo-dev and build again";
  if (place.engine == "mpi") {
    remedy = "install libopenmpi-dev and build again";
  } else if (place.engine == "nccl") {
    remedy = "it needs a libtorch with CUDA, and devices are CPUs here; use gloo or mpi";
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("this build has no engine `{}` (it has: {}); {}", place.engine,
                          join(built_engines(), ", "), remedy));
}

}  // namespace

std::vector<std::string> built_engines() {
  std::vector<std::string> engines = {"inproc"};
#ifdef MILLRACE_HAVE_C10D
  engines.emplace_back("gloo");
#endif
#ifdef MILLRACE_HAVE_MPI
  engines.emplace_back("mpi");
#endif
  return engines;
}

std::unique_ptr<JoinedWorld> join_world(const WorldPlace& place, const PortExchange& ports,
                                        JoinedOptions options) {
  std::unique_ptr<Wire> wire = join_wire(place, ports, options.timeout_s);
  return std::make_unique<JoinedWorld>(std::move(wire), std::move(options));
}

}  // namespace millrace
