#include "millrace/comm/mpi/session.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/comm/wire.h"

namespace millrace {
namespace {

// What a process tells all others when they meet.
struct Card {
  std::array<char, 128> layout{};
  std::array<char, 256> job{};
  std::array<char, 256> host{};
};

template <std::size_t kSize>
void put(std::array<char, kSize>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), kSize - 1));
}

Card own_card(const WorldPlace& place) {
  Card card;
  put(card.layout, frame_layout());
  put(card.job, place.job_id);
  put(card.host, own_host_name());
  return card;
}

void initialise(const WorldPlace& place) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "MPI starts once a process, and has been started in this one; join one world with "
                "the engine mpi");
  }
  int offered = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &offered), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (offered != MPI_THREAD_MULTIPLE) {
    throw Error(ErrorCode::kUnsupported,
                "expected an MPI that offers MPI_THREAD_MULTIPLE, found one that does not; install "
                "openmpi-bin and libopenmpi-dev of your distribution, or use --engine gloo");
  }
  int size = 0;
  int rank = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  if (size != place.num_processes || rank != place.process) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected to be process {} of {} of MPI's world, found {} of {}; start "
                            "all of them with one `mpirun -n {}` of the MPI of this build",
                            place.process, place.num_processes, rank, size, place.num_processes));
  }
}

void check_cards(const std::vector<Card>& cards, const Card& own, const WorldPlace& place) {
  for (std::size_t process = 0; process < cards.size(); ++process) {
    const Card& card = cards[process];
    if (card.layout != own.layout) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("process {} is another build of Millrace ({}; this one: {})", process,
                              card.layout.data(), own.layout.data()));
    }
    if (card.job != own.job) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("expected processes of one job, found process {} of job {} and "
                              "process {} of {}",
                              place.process, in_quotes(own.job.data()), process,
                              in_quotes(card.job.data())));
    }
  }
}

}  // namespace

std::string mpi_error_text(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  if (MPI_Error_string(error, text.data(), &size) != MPI_SUCCESS) {
    return fmt::format("MPI error {}", error);
  }
  const std::string all(text.data());
  return all.substr(0, all.find('\n'));
}

void check_mpi(int error, const char* call) {
  if (error != MPI_SUCCESS) {
    throw Error(ErrorCode::kPeerLost, fmt::format("{} failed: {}", call, mpi_error_text(error)));
  }
}

double mpi_pause_s(double idle_s) {
  constexpr double kYieldS = 50e-6;
  constexpr double kShortestS = 10e-6;
  // Each look interrupts who computes on that core; a message that comes after a long silence can
  // wait a little.
  constexpr double kLongestS = 300e-6;
  return idle_s < kYieldS ? 0 : std::clamp(idle_s / 8, kShortestS, kLongestS);
}

bool complete_mpi(std::vector<MPI_Request>& requests, double deadline_s,
                  const std::function<bool()>& give_up, const char* call) {
  const double start_s = monotonic_s();
  while (true) {
    int done = 0;
    check_mpi(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        call);
    if (done != 0) {
      return true;
    }
    const double now_s = monotonic_s();
    if (now_s > deadline_s || (give_up && give_up())) {
      return false;
    }
    const double pause_s = mpi_pause_s(now_s - start_s);
    if (pause_s == 0) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
    }
  }
}

void keep_for_mpi(std::vector<at::Tensor> tensors) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<at::Tensor>;  // never destroyed
  const std::lock_guard lock(mutex);
  std::move(tensors.begin(), tensors.end(), std::back_inserter(kept));
}

MpiSession start_mpi(const WorldPlace& place, double timeout_s) {
  initialise(place);
  const double deadline_s = monotonic_s() + timeout_s;
  const Card own = own_card(place);
  std::vector<Card> cards(static_cast<std::size_t>(place.num_processes));
  std::vector<MPI_Request> request(1);
  check_mpi(MPI_Iallgather(&own, sizeof(Card), MPI_BYTE, cards.data(), sizeof(Card), MPI_BYTE,
                           MPI_COMM_WORLD, request.data()),
            "MPI_Iallgather");
  MpiSession session;
  bool met = complete_mpi(request, deadline_s, {}, "MPI_Iallgather");
  if (met) {
    check_cards(cards, own, place);
    check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &session.comm, request.data()), "MPI_Comm_idup");
    met = complete_mpi(request, deadline_s, {}, "MPI_Comm_idup");
  }
  if (!met) {
    throw Error(ErrorCode::kTimeout,
                fmt::format("waited {:g} s for all {} processes to join; does one of them hang "
                            "before it?",
                            timeout_s, place.num_processes));
  }
  check_mpi(MPI_Comm_set_errhandler(session.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  for (const Card& card : cards) {
    session.hosts.emplace_back(card.host.data());
  }
  return session;
}

}  // namespace millrace
