#include "millrace/base/job_board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "millrace/base/error_text.h"

namespace millrace {
namespace {

constexpr uint64_t kMagic = 0x64726f425a524c4dU;
constexpr uint32_t kVersion = 1;

static_assert(std::atomic<int64_t>::is_always_lock_free);
static_assert(std::atomic<int32_t>::is_always_lock_free);

// A text that is written once. Zeroed memory is an empty one. Who is killed between taking it and
// publishing it leaves it empty for good.
template <std::size_t kBytes>
class OnceText {
 public:
  bool set(std::string_view text) noexcept {
    int32_t expected = kEmpty;
    if (!state_.compare_exchange_strong(expected, kTaken, std::memory_order_relaxed)) {
      return false;
    }
    size_ = static_cast<uint32_t>(std::min(text.size(), kBytes));
    std::memcpy(bytes_.data(), text.data(), size_);
    state_.store(kReady, std::memory_order_release);
    return true;
  }
  bool ready() const noexcept { return state_.load(std::memory_order_acquire) == kReady; }
  // The size is bounded again: another process may write anything into shared memory.
  std::string get() const {
    return ready() ? std::string(bytes_.data(), std::min<std::size_t>(size_, kBytes)) : "";
  }

 private:
  static constexpr int32_t kEmpty = 0;
  static constexpr int32_t kTaken = 1;
  static constexpr int32_t kReady = 2;

  std::atomic<int32_t> state_;
  uint32_t size_;
  std::array<char, kBytes> bytes_;
};

Error system_error(const char* call) {
  return {ErrorCode::kInternal, fmt::format("cannot make the job board: {}: {}", call,
                                            std::generic_category().message(errno))};
}

Error not_a_board(int fd, const std::string& found) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("expected the job board of the launcher behind descriptor {}, found {}; start "
                  "the run with `millrace` of the same version",
                  fd, found)};
}

// For a process that has no memory left to write its error as text.
constexpr std::string_view kOutOfMemoryText = R"({"code": 6, "message": "out of memory"})";
constexpr std::string_view kNoText = R"({"code": 8, "message": "failed, and could not say why"})";
static_assert(static_cast<int>(ErrorCode::kOutOfMemory) == 6);
static_assert(static_cast<int>(ErrorCode::kInternal) == 8);

}  // namespace

const char* to_string(JobPhase phase) {
  switch (phase) {
    case JobPhase::kStarting:
      return "starting";
    case JobPhase::kJoining:
      return "joining";
    case JobPhase::kPreparing:
      return "preparing";
    case JobPhase::kTraining:
      return "training";
    case JobPhase::kEvaluating:
      return "evaluating";
    case JobPhase::kSaving:
      return "saving";
    case JobPhase::kDone:
      return "done";
  }
  return "in no phase that there is";
}

// One a process, behind the page. Own cache lines, since each is written by another process.
struct alignas(64) JobBoard::Slot {
  std::atomic<int32_t> pid;
  std::atomic<JobPhase> phase;
  std::atomic<int64_t> ranks;  // first in the upper half, last + 1 in the lower; 0: not set
  std::atomic<int64_t> steps;  // last completed step + 1; 0: none
  std::atomic<uint32_t> failure_order;
  OnceText<kMaxStagesBytes> stages;
  OnceText<kMaxFailureBytes> failure;
};

struct alignas(64) JobBoard::Page {
  uint64_t magic;
  uint32_t version;
  int32_t num_processes;
  std::atomic<int32_t> port;
  std::atomic<uint32_t> last_order;
  OnceText<kMaxStopBytes> stop;

  static std::size_t bytes(int num_processes) {
    return sizeof(Page) + sizeof(Slot) * static_cast<std::size_t>(num_processes);
  }
};

JobBoard JobBoard::create(int num_processes) {
  MILLRACE_CHECK(num_processes >= 1 && num_processes <= kMaxProcesses);
  const int fd = ::memfd_create("millrace-job", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    throw system_error("memfd_create");
  }
  const std::size_t bytes = Page::bytes(num_processes);
  void* memory = MAP_FAILED;
  // Sealed, so that no process can make another's access to it fault.
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    Error error = system_error("mmap");
    ::close(fd);
    throw error;
  }
  // The memory is zeroed, which is every field's start.
  Page* page = static_cast<Page*>(memory);
  page->version = kVersion;
  page->num_processes = num_processes;
  page->magic = kMagic;
  return {fd, page, bytes};
}

JobBoard JobBoard::attach(int fd) {
  struct stat file = {};
  if (::fstat(fd, &file) != 0) {
    throw not_a_board(fd, std::generic_category().message(errno));
  }
  const std::size_t bytes = static_cast<std::size_t>(std::max<off_t>(file.st_size, 0));
  if (!S_ISREG(file.st_mode) || bytes < Page::bytes(1) || bytes > Page::bytes(kMaxProcesses)) {
    throw not_a_board(fd, fmt::format("{} bytes of something else", bytes));
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    throw not_a_board(fd, std::generic_category().message(errno));
  }
  const Page* page = static_cast<const Page*>(memory);
  std::string found;
  if (page->magic != kMagic) {
    found = "something else";
  } else if (page->version != kVersion) {
    found = fmt::format("version {} where this program has {}", page->version, kVersion);
  } else if (page->num_processes < 1 || page->num_processes > kMaxProcesses ||
             Page::bytes(page->num_processes) != bytes) {
    found = fmt::format("{} bytes for {} processes", bytes, page->num_processes);
  }
  if (!found.empty()) {
    ::munmap(memory, bytes);
    throw not_a_board(fd, found);
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return {fd, static_cast<Page*>(memory), bytes};
}

JobBoard::JobBoard(int fd, Page* page, std::size_t bytes) noexcept
    : fd_(fd), page_(page), bytes_(bytes) {}

JobBoard::JobBoard(JobBoard&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      page_(std::exchange(other.page_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

JobBoard& JobBoard::operator=(JobBoard&& other) noexcept {
  if (this != &other) {
    release();
    fd_ = std::exchange(other.fd_, -1);
    page_ = std::exchange(other.page_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

JobBoard::~JobBoard() { release(); }

void JobBoard::release() noexcept {
  if (page_ != nullptr) {
    ::munmap(page_, bytes_);
    ::close(fd_);
  }
}

JobBoard::Slot& JobBoard::slot(int process) const noexcept {
  Slot* slots = reinterpret_cast<Slot*>(page_ + 1);
  return slots[std::clamp(process, 0, num_processes() - 1)];
}

int JobBoard::num_processes() const noexcept { return page_->num_processes; }

void JobBoard::set_port(int port) noexcept { page_->port.store(port); }
int JobBoard::port() const noexcept { return page_->port.load(); }

void JobBoard::set_pid(int process, int pid) noexcept { slot(process).pid.store(pid); }
int JobBoard::pid(int process) const noexcept { return slot(process).pid.load(); }

void JobBoard::set_phase(int process, JobPhase phase) noexcept { slot(process).phase.store(phase); }
JobPhase JobBoard::phase(int process) const noexcept { return slot(process).phase.load(); }

void JobBoard::set_ranks(int process, int first, int last) noexcept {
  slot(process).ranks.store((static_cast<int64_t>(first) << 32) | (last + 1));
}
std::optional<std::pair<int, int>> JobBoard::ranks(int process) const noexcept {
  const int64_t both = slot(process).ranks.load();
  if (both == 0) {
    return std::nullopt;
  }
  return std::pair(static_cast<int>(both >> 32), static_cast<int>(both & 0x7fffffff) - 1);
}

void JobBoard::set_step(int process, int64_t step) noexcept { slot(process).steps.store(step + 1); }
std::optional<int64_t> JobBoard::step(int process) const noexcept {
  const int64_t steps = slot(process).steps.load();
  return steps == 0 ? std::nullopt : std::optional(steps - 1);
}

void JobBoard::set_stages(int process, std::string_view text) noexcept {
  slot(process).stages.set(text);
}
std::string JobBoard::stages(int process) const { return slot(process).stages.get(); }

void JobBoard::set_failure(int process, const Error& error) noexcept {
  Slot& mine = slot(process);
  // The order is taken before anything that may take time, such as memory that is short.
  uint32_t expected = 0;
  if (!mine.failure_order.compare_exchange_strong(expected, page_->last_order.fetch_add(1) + 1)) {
    return;
  }
  try {
    mine.failure.set(to_text(error, kMaxFailureBytes));
  } catch (...) {
    mine.failure.set(error.code() == ErrorCode::kOutOfMemory ? kOutOfMemoryText : kNoText);
  }
}

std::optional<JobFailure> JobBoard::failure(int process) const {
  const Slot& its = slot(process);
  if (!its.failure.ready()) {
    return std::nullopt;
  }
  const uint32_t order = its.failure_order.load();
  return JobFailure{order, error_from_text(its.failure.get())};
}

void JobBoard::set_stop(std::string_view why) noexcept { page_->stop.set(why); }
bool JobBoard::stop_requested() const noexcept { return page_->stop.ready(); }
std::string JobBoard::stop_text() const { return page_->stop.get(); }

}  // namespace millrace
