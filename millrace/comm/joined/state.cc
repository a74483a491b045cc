#include "millrace/comm/joined/state.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/error_text.h"
#include "millrace/base/text.h"
#include "millrace/core/world_place.h"

namespace millrace {
namespace {

constexpr std::size_t kLongestCause = 4096;

// Notes and causes are text; what an exchange brings is told apart by its number.
Frame text_frame(Frame::Kind kind, const std::string& text, int64_t number, at::Tensor& payload) {
  Frame frame;
  frame.kind = kind;
  frame.microbatch = number;
  frame.bytes = text.size();
  if (frame.is_inline()) {
    std::memcpy(frame.inlined.data(), text.data(), text.size());
  } else {
    payload = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    std::memcpy(payload.data_ptr(), text.data(), text.size());
  }
  return frame;
}

std::string text_of(const Frame& frame, const at::Tensor& payload) {
  const void* bytes = frame.is_inline() ? frame.inlined.data() : payload.data_ptr();
  return {static_cast<const char*>(bytes), frame.bytes};
}

constexpr int64_t kNoExchange = -1;

// A number for a program's message on its way, the same at both ends.
uint32_t slot_of(int from, int to, const MessageTag& tag) {
  constexpr uint64_t kPrime = 1099511628211U;
  uint64_t hash = 14695981039346656037U;
  for (const int64_t each : {int64_t{from}, int64_t{to}, int64_t{tag.lane}, int64_t{tag.stage},
                             tag.microbatch, int64_t{tag.tensor}}) {
    hash = (hash ^ static_cast<uint64_t>(each)) * kPrime;
  }
  return static_cast<uint32_t>((hash ^ (hash >> 31U)) & 0x3fff'ffffU) + 1;
}

at::Tensor empty_like_frame(const Frame& frame) {
  std::vector<int64_t> sizes(frame.sizes.begin(), frame.sizes.begin() + frame.num_dimensions);
  return at::empty(sizes, static_cast<at::ScalarType>(frame.dtype));
}

}  // namespace

JoinedWorld::State::State(std::unique_ptr<Wire> engine, JoinedOptions own_options)
    : wire(std::move(engine)),
      options(std::move(own_options)),
      inner(options.num_ranks, options.timeout_s),
      local_ranks(ranks_of_process(options.num_ranks, wire->num_processes(), wire->process())),
      last_heard_s(static_cast<std::size_t>(wire->num_processes())) {
  const double now_s = monotonic_s();
  for (std::atomic<double>& each : last_heard_s) {
    each = now_s;
  }
}

std::string JoinedWorld::State::describe(int process) const {
  std::vector<std::string> ranks;
  for (const int rank : ranks_of_process(options.num_ranks, wire->num_processes(), process)) {
    ranks.push_back(std::to_string(rank));
  }
  return fmt::format("process {} ({} {}) on {}", process, ranks.size() == 1 ? "rank" : "ranks",
                     join(ranks, ", "), wire->host_of(process));
}

uint64_t JoinedWorld::State::send(int from, int to, const MessageTag& tag,
                                  const at::Tensor& tensor) {
  if (inner.abort_flag().raised()) {
    inner.abort_flag().rethrow();
  }
  const Fingerprint fingerprint = fingerprint_of(tensor);
  Frame frame;
  frame.tag_kind = tag.kind;
  frame.stage = tag.stage;
  frame.microbatch = tag.microbatch;
  frame.tensor = tag.tensor;
  frame.to_stage = tag.to_stage;
  frame.lane = tag.lane;
  if (tag.kind == kProgramMessage) {
    frame.slot = slot_of(from, to, tag);
  }
  frame.from_rank = from;
  frame.to_rank = to;
  frame.dtype = fingerprint.dtype;
  frame.num_dimensions = fingerprint.num_dimensions;
  frame.sizes = fingerprint.sizes;
  at::Tensor payload;
  if (tensor.defined()) {
    if (tensor.dim() > static_cast<int64_t>(frame.sizes.size())) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("a tensor of {} dimensions between processes; at most {} travel",
                              tensor.dim(), frame.sizes.size()))
          .at_rank(from);
    }
    payload = tensor.contiguous();
    frame.bytes = payload.nbytes();
    if (frame.is_inline()) {
      std::memcpy(frame.inlined.data(), payload.data_ptr(), frame.bytes);
      payload.reset();
    }
  }
  return wire->send(process_of_rank(to, options.num_ranks, wire->num_processes()), frame,
                    std::move(payload));
}

void JoinedWorld::State::land(int to, int from, const MessageTag& tag, const at::Tensor& part) {
  {
    const std::lock_guard lock(landings_mutex);
    landings[{to, from, tag.lane, tag.stage, tag.microbatch, tag.tensor}] = part;
  }
  wire->expect(process_of_rank(from, options.num_ranks, wire->num_processes()),
               slot_of(from, to, tag), part);
}

void JoinedWorld::State::forget_landing(int to, int from, const MessageTag& tag) {
  {
    const std::lock_guard lock(landings_mutex);
    landings.erase({to, from, tag.lane, tag.stage, tag.microbatch, tag.tensor});
  }
  wire->forget(process_of_rank(from, options.num_ranks, wire->num_processes()),
               slot_of(from, to, tag));
}

at::Tensor JoinedWorld::State::landing(const Frame& frame) {
  if (frame.kind != Frame::Kind::kMessage) {
    return at::empty({static_cast<int64_t>(frame.bytes)}, at::kByte);
  }
  if (frame.tag_kind == kProgramMessage) {
    const std::lock_guard lock(landings_mutex);
    const auto found = landings.find(
        {frame.to_rank, frame.from_rank, frame.lane, frame.stage, frame.microbatch, frame.tensor});
    if (found != landings.end()) {
      at::Tensor part = std::move(found->second);
      landings.erase(found);
      if (part.nbytes() == frame.bytes && fingerprint_of(part) == frame.fingerprint()) {
        return part;
      }
    }
  }
  return empty_like_frame(frame);
}

void JoinedWorld::State::on_frame(int from_process, const Frame& frame, at::Tensor payload) {
  last_heard_s[static_cast<std::size_t>(from_process)] = monotonic_s();
  switch (frame.kind) {
    case Frame::Kind::kMessage: {
      at::Tensor tensor;
      if (frame.dtype != Fingerprint::kNoTensor) {
        tensor = payload;
        if (frame.is_inline()) {
          tensor = empty_like_frame(frame);
          std::memcpy(tensor.data_ptr(), frame.inlined.data(), frame.bytes);
        }
      }
      try {
        inner.deliver(frame.from_rank, frame.to_rank, frame.tag(), frame.fingerprint(),
                      std::move(tensor));
      } catch (const Error& error) {
        abort(error);  // no more than what is known already, when the world has been aborted
      }
      return;
    }
    case Frame::Kind::kNote: {
      const std::string text = text_of(frame, payload);
      if (frame.microbatch == kNoExchange) {
        notes.put(from_process, text);
        return;
      }
      const std::lock_guard lock(exchange_mutex);
      texts[frame.microbatch][from_process] = text;
      exchanged.notify_all();
      return;
    }
    case Frame::Kind::kAbort: {
      inner.abort(error_from_text(text_of(frame, payload)));
      const std::lock_guard lock(exchange_mutex);
      exchanged.notify_all();
      return;
    }
    case Frame::Kind::kBye:
      return;
  }
}

void JoinedWorld::State::on_lost(int process, const std::string& why) {
  abort(Error(ErrorCode::kPeerLost,
              fmt::format("{} ended without a word ({})", describe(process), why)));
}

void JoinedWorld::State::abort(const Error& cause) {
  inner.abort(cause);
  {
    const std::lock_guard lock(exchange_mutex);
    exchanged.notify_all();
  }
  // A rank that was told of a failure reports it again: what is known is sent once.
  std::atomic<bool>& told = cause.code() == ErrorCode::kPeerLost ? told_loss : told_cause;
  if (closed || told.exchange(true)) {
    return;
  }
  at::Tensor payload;
  const Frame frame = text_frame(Frame::Kind::kAbort, to_text(cause, kLongestCause), 0, payload);
  for (int process = 0; process < wire->num_processes(); ++process) {
    if (process != wire->process()) {
      wire->send(process, frame, payload);
    }
  }
}

std::string JoinedWorld::State::exchange_problem(int64_t number, double waited_s) const {
  std::vector<std::string> missing;
  const auto found = texts.find(number);
  for (int process = 0; process < wire->num_processes(); ++process) {
    if (found == texts.end() || !found->second.contains(process)) {
      missing.push_back(describe(process));
    }
  }
  return fmt::format("waited {:.1f} s for {} to reach the same point", waited_s,
                     join(missing, " and "));
}

JoinedWorld::JoinedWorld(std::unique_ptr<Wire> wire, JoinedOptions options)
    : state_(std::make_shared<State>(std::move(wire), std::move(options))) {
  state_->wire->start(*state_);
}

JoinedWorld::~JoinedWorld() {
  if (!state_->closed.exchange(true)) {
    // Nobody said that all was well: to the others this process is lost.
    state_->wire->close(0, true);
  }
}

int JoinedWorld::num_ranks() const { return state_->options.num_ranks; }
const std::vector<int>& JoinedWorld::local_ranks() const { return state_->local_ranks; }
int JoinedWorld::process() const { return state_->wire->process(); }
int JoinedWorld::num_processes() const { return state_->wire->num_processes(); }
int JoinedWorld::process_of(int rank) const {
  return process_of_rank(rank, num_ranks(), num_processes());
}
std::string JoinedWorld::engine() const { return state_->wire->engine(); }
void JoinedWorld::abort(const Error& cause) { state_->abort(cause); }
std::optional<Error> JoinedWorld::first_cause() const { return state_->inner.first_cause(); }

void JoinedWorld::reduce_by(ChooseCollective choose, std::shared_ptr<const Codec> codec) {
  const std::lock_guard lock(state_->groups_mutex);
  state_->options.choose = std::move(choose);
  state_->options.codec = std::move(codec);
}

void JoinedWorld::listen(Listener listener) { state_->notes.listen(std::move(listener)); }

void JoinedWorld::tell(int process, const std::string& text) {
  if (process == state_->wire->process()) {
    state_->notes.put(process, text);
    return;
  }
  at::Tensor payload;
  const Frame frame = text_frame(Frame::Kind::kNote, text, kNoExchange, payload);
  state_->wire->send(process, frame, std::move(payload));
}

std::vector<std::string> JoinedWorld::exchange(const std::string& own, double timeout_s) {
  State& state = *state_;
  const double start_s = monotonic_s();
  at::Tensor payload;
  const int64_t number = state.next_exchange++;
  const Frame frame = text_frame(Frame::Kind::kNote, own, number, payload);
  for (int process = 0; process < num_processes(); ++process) {
    if (process != state.wire->process()) {
      state.wire->send(process, frame, payload);
    }
  }
  std::unique_lock lock(state.exchange_mutex);
  std::map<int, std::string>& texts = state.texts[number];
  texts[process()] = own;
  const auto all = [&] { return static_cast<int>(texts.size()) == num_processes(); };
  const bool in_time =
      state.exchanged.wait_for(lock, std::chrono::duration<double>(timeout_s),
                               [&] { return all() || state.inner.abort_flag().raised(); });
  if (all()) {
    std::vector<std::string> result;
    for (auto& [process, text] : texts) {
      result.push_back(std::move(text));
    }
    state.texts.erase(number);
    return result;
  }
  if (in_time) {
    state.inner.abort_flag().rethrow();
  }
  const Error error(ErrorCode::kTimeout, state.exchange_problem(number, monotonic_s() - start_s));
  lock.unlock();
  state.abort(error);
  throw Error(error);
}

std::vector<RankWait> JoinedWorld::waits() const {
  std::vector<RankWait> waits = state_->inner.waits();
  for (RankWait& wait : waits) {
    const int process = process_of(wait.from);
    if (process != this->process()) {
      wait.last_heard_s = monotonic_s() - state_->last_heard_s[static_cast<std::size_t>(process)];
    }
  }
  return waits;
}

void JoinedWorld::close(double timeout_s) {
  if (state_->closed.exchange(true)) {
    return;
  }
  const bool failed = first_cause().has_value();
  if (failed) {
    // The others are to hear why before the connection ends; who is gone keeps nobody.
    constexpr double kLastWordsS = 0.5;
    Frame last;
    last.kind = Frame::Kind::kBye;
    for (int process = 0; process < num_processes(); ++process) {
      if (process != this->process()) {
        state_->wire->wait_sent(process, state_->wire->send(process, last, {}), kLastWordsS);
      }
    }
  }
  state_->wire->close(timeout_s, failed);
}

}  // namespace millrace
