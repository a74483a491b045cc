#include "millrace/train/coordination.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>

#include "millrace/base/text.h"

namespace millrace {
namespace {

// What a process answers that is through with the segment: nothing in it can be stopped any more.
constexpr int64_t kThrough = std::numeric_limits<int64_t>::max() / 4;

// Hexadecimal, so that a loss keeps its bits.
std::string exact(double value) { return fmt::format("{:a}", value); }
double exact(const std::string& text) { return std::strtod(text.c_str(), nullptr); }
int64_t integer(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

}  // namespace

// Reports of a process that does not lead.
class Coordination::Remote final : public StepReporter {
 public:
  explicit Remote(World& world) : world_(world) {}
  void set_segment(int64_t segment) { segment_ = segment; }

  void report(int64_t step, int reporter, const LossSums& sums) override {
    world_.tell(0, fmt::format("loss {} {} {} {} {} {}", segment_, step, reporter, exact(sums.loss),
                               sums.correct, sums.samples));
  }
  void report_norm(int64_t step, double gradient_norm) override {
    world_.tell(0, fmt::format("norm {} {} {}", segment_, step, exact(gradient_norm)));
  }

 private:
  World& world_;
  int64_t segment_ = 0;
};

Coordination::Coordination(World& world) : world_(world), remote_(std::make_unique<Remote>(world)) {
  world_.listen([this](int from, const std::string& text) { hear(from, text); });
}

Coordination::~Coordination() { world_.listen({}); }

void Coordination::begin(StepGate& gate, StepBoard& board) {
  Outgoing out;
  {
    const std::lock_guard lock(mutex_);
    ++segment_;
    gate_ = &gate;
    board_ = &board;
    asked_ = false;
    freezing_ = false;
    furthest_.clear();
    remote_->set_segment(segment_);
    std::vector<std::pair<int, Note>> early;
    early.swap(early_);
    for (const auto& [from, note] : early) {
      handle(from, note, out);
    }
  }
  send(out);
}

void Coordination::end() {
  const std::lock_guard lock(mutex_);
  gate_ = nullptr;
  board_ = nullptr;
}

StepReporter& Coordination::reporter() {
  const std::lock_guard lock(mutex_);
  MILLRACE_CHECK(board_ != nullptr, "a report outside of a segment");
  return world_.leads() ? static_cast<StepReporter&>(*board_) : *remote_;
}

void Coordination::request_stop() {
  int64_t segment = 0;
  {
    const std::lock_guard lock(mutex_);
    if (gate_ == nullptr || std::exchange(asked_, true)) {
      return;
    }
    segment = segment_;
  }
  world_.tell(0, fmt::format("stop {}", segment));
}

void Coordination::hear(int from, const std::string& text) {
  std::vector<std::string> words = split(text, ' ');
  MILLRACE_CHECK(words.size() >= 2, text);
  Note note{words[0], integer(words[1]), {}};
  note.words.assign(words.begin() + 2, words.end());
  Outgoing out;
  {
    const std::lock_guard lock(mutex_);
    handle(from, note, out);
  }
  send(out);
}

void Coordination::handle(int from, const Note& note, Outgoing& out) {
  if (note.segment > segment_) {
    early_.emplace_back(from, note);
    return;
  }
  const bool current = note.segment == segment_ && gate_ != nullptr;
  if (note.what == "freeze") {
    out.emplace_back(
        from, fmt::format("furthest {} {}", note.segment, current ? gate_->freeze() : kThrough));
  } else if (!current) {
    return;  // the segment is over: no stop can change it
  } else if (note.what == "loss") {
    board_->report(integer(note.words.at(0)), static_cast<int>(integer(note.words.at(1))),
                   {.loss = exact(note.words.at(2)),
                    .correct = integer(note.words.at(3)),
                    .samples = integer(note.words.at(4))});
  } else if (note.what == "norm") {
    board_->report_norm(integer(note.words.at(0)), exact(note.words.at(1)));
  } else if (note.what == "stop") {
    if (!std::exchange(freezing_, true)) {
      for (int process = 0; process < world_.num_processes(); ++process) {
        out.emplace_back(process, fmt::format("freeze {}", note.segment));
      }
    }
  } else if (note.what == "furthest") {
    furthest_[from] = integer(note.words.at(0));
    if (static_cast<int>(furthest_.size()) == world_.num_processes()) {
      int64_t furthest = -1;
      for (const auto& [process, step] : furthest_) {
        furthest = std::max(furthest, step);
      }
      for (int process = 0; process < world_.num_processes(); ++process) {
        out.emplace_back(process, fmt::format("limit {} {}", note.segment, furthest));
      }
    }
  } else if (note.what == "limit") {
    gate_->stop_after(integer(note.words.at(0)));
  } else {
    MILLRACE_CHECK(false, note.what);
  }
}

void Coordination::send(const Outgoing& out) {
  for (const auto& [process, text] : out) {
    world_.tell(process, text);
  }
}

}  // namespace millrace
