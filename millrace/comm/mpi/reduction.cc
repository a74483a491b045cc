#include "millrace/comm/mpi/reduction.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "millrace/base/clock.h"

namespace millrace {
namespace {

constexpr int kFirstTag = 16;    // the wire's own are below
constexpr int kLastTag = 32767;  // what every MPI has
// MPI counts in int.
constexpr int64_t kPieceElements = int64_t{1} << 30;

Error gave_up(bool failed, const std::string& what, double timeout_s) {
  if (failed) {
    return {ErrorCode::kPeerLost, what + " ended: another process failed or is lost"};
  }
  return {ErrorCode::kTimeout, fmt::format("waited {:g} s for {}", timeout_s, what)};
}

// Blocks until all of `processes` are here: what makes a communicator has no deadline.
void meet(MPI_Comm comm, const std::atomic<bool>& failed, const std::vector<int>& processes,
          int tag, double timeout_s) {
  int own = 0;
  check_mpi(MPI_Comm_rank(comm, &own), "MPI_Comm_rank");
  std::vector<MPI_Request> requests;
  for (const int process : processes) {
    if (process != own) {
      check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, process, tag, comm, &requests.emplace_back()),
                "MPI_Irecv");
      check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, process, tag, comm, &requests.emplace_back()),
                "MPI_Isend");
    }
  }
  if (!complete_mpi(
          requests, monotonic_s() + timeout_s, [&] { return failed.load(); }, "MPI_Testall")) {
    throw gave_up(failed, "all processes of a group to meet", timeout_s);
  }
}

class MpiReduction final : public NativeReduction {
 public:
  MpiReduction(MPI_Comm comm, const std::atomic<bool>& failed) : comm_(comm), failed_(failed) {}

  void all_reduce_sum(at::Tensor& tensor, double timeout_s) override {
    const double deadline_s = monotonic_s() + timeout_s;
    const MPI_Datatype type = tensor.scalar_type() == at::kFloat ? MPI_FLOAT : MPI_DOUBLE;
    auto* const bytes = static_cast<std::byte*>(tensor.data_ptr());
    std::vector<MPI_Request> request(1);
    for (int64_t first = 0; first < tensor.numel(); first += kPieceElements) {
      const int count = static_cast<int>(std::min(kPieceElements, tensor.numel() - first));
      check_mpi(MPI_Iallreduce(MPI_IN_PLACE, bytes + first * tensor.element_size(), count, type,
                               MPI_SUM, comm_, request.data()),
                "MPI_Iallreduce");
      if (!complete_mpi(
              request, deadline_s, [this] { return failed_.load(); }, "MPI_Iallreduce")) {
        keep_for_mpi({tensor});
        throw gave_up(failed_, "MPI's all-reduce", timeout_s);
      }
    }
  }

 private:
  const MPI_Comm comm_;
  const std::atomic<bool>& failed_;
};

}  // namespace

std::unique_ptr<NativeReduction> make_mpi_reduction(MPI_Comm comm, const std::atomic<bool>& failed,
                                                    const std::vector<int>& processes,
                                                    const std::string& name, double timeout_s) {
  const int tag = kFirstTag + static_cast<int>(std::hash<std::string>{}(name) %
                                               static_cast<std::size_t>(kLastTag - kFirstTag));
  meet(comm, failed, processes, tag, timeout_s);
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(comm, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(processes.size()), processes.data(), &some),
            "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(comm, some, tag, &made), "MPI_Comm_create_group");
  check_mpi(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  return std::make_unique<MpiReduction>(made, failed);
}

}  // namespace millrace
