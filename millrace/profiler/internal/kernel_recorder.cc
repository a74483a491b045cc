#include "millrace/profiler/internal/kernel_recorder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/model/layer.h"

namespace millrace::internal {
namespace {

// Libtorch's hooks are plain functions, and a thread has at most one recorder.
thread_local KernelRecorder* g_recorder = nullptr;

// Says at an operator's end that its begin was recorded.
struct Recorded final : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  if (g_recorder == nullptr) {
    return nullptr;
  }
  const c10::optional<c10::OperatorName> name = function.operator_name();
  if (!name ||
      !g_recorder->enter_operator(function.name(), name->overload_name, function.inputs())) {
    return nullptr;
  }
  return std::make_unique<Recorded>();
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context != nullptr && g_recorder != nullptr) {
    g_recorder->leave_operator(function.outputs());
  }
}

const void* place_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage()
             ? tensor.data_ptr()
             : nullptr;
}

bool contains(const std::vector<const void*>& places, const void* place) {
  return place != nullptr && std::find(places.begin(), places.end(), place) != places.end();
}

bool only_makes_room(const std::string& name) { return name.rfind("aten::empty", 0) == 0; }

constexpr const char* kRecordingKey = "recording";
constexpr double kOwnShare = 0.5;

}  // namespace

KernelRecorder* KernelRecorder::of_this_thread() { return g_recorder; }

KernelRecorder::KernelRecorder(std::function<double()> clock) : clock_(std::move(clock)) {
  MILLRACE_CHECK(g_recorder == nullptr, "a second recorder on one thread");
  row_at(kRecordingKey, KernelRowKind::kRecording, "recording");
  g_recorder = this;
}

KernelRecorder::~KernelRecorder() {
  if (in_step_) {  // which threw
    at::removeCallback(handle_);
  }
  g_recorder = nullptr;
}

std::size_t KernelRecorder::row_at(const std::string& key, KernelRowKind kind,
                                   const std::string& name) {
  const auto [place, added] = row_of_.emplace(key, rows_.size());
  if (added) {
    rows_.emplace_back();
    rows_.back().row.kind = kind;
    rows_.back().row.name = name;
  }
  return place->second;
}

double KernelRecorder::charge() {
  const double now = clock_();
  if (!frames_.empty()) {
    rows_[frames_.back().row].row.self_s += now - mark_s_;
  }
  mark_s_ = now;
  return now;
}

void KernelRecorder::recorded(double since_s) {
  mark_s_ = clock_();
  rows_[0].row.self_s += mark_s_ - since_s;
  recording_s_ += mark_s_ - since_s;
}

void KernelRecorder::push(std::size_t row, std::string layer) {
  Frame frame;
  frame.row = row;
  frame.appended_before = appended_;
  if (!frames_.empty()) {
    frame.in_pointwise = frames_.back().in_pointwise;
    if (layer.empty()) {
      layer = frames_.back().layer;
    }
  }
  std::vector<std::string>& layers = rows_[row].row.layers;
  if (!layer.empty() && std::find(layers.begin(), layers.end(), layer) == layers.end()) {
    layers.push_back(layer);
  }
  frame.layer = std::move(layer);
  frames_.push_back(std::move(frame));
}

double KernelRecorder::pop() {
  const Frame& frame = frames_.back();
  const double seconds = mark_s_ - frame.begin_s - (recording_s_ - frame.recording_s);
  KernelRow& row = rows_[frame.row].row;
  row.total_s += seconds;
  row.calls += 1;
  return seconds;
}

void KernelRecorder::begin_step() {
  MILLRACE_CHECK(!in_step_ && frames_.empty());
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  in_step_ = true;
  step_begin_s_ = clock_();
  push(row_at("between", KernelRowKind::kStage, "between layers"), "");
  recorded(step_begin_s_);
  frames_.back().begin_s = mark_s_;
  frames_.back().recording_s = recording_s_;
}

void KernelRecorder::end_step() {
  const double now = charge();
  MILLRACE_CHECK(frames_.size() == 1);
  pop();
  end_chain();
  frames_.clear();
  in_step_ = false;
  ++steps_;
  recorded(now);
  recorded_s_ += mark_s_ - step_begin_s_;
  at::removeCallback(handle_);
}

void KernelRecorder::enter(KernelRowKind kind, const std::string& name, const std::string& layer) {
  if (!in_step_) {
    return;
  }
  const double now = charge();
  push(row_at(std::string(to_string(kind)) + " " + name, kind, name), layer);
  recorded(now);
  frames_.back().begin_s = mark_s_;
  frames_.back().recording_s = recording_s_;
}

void KernelRecorder::leave() {
  if (!in_step_) {
    return;
  }
  const double now = charge();
  pop();
  // What it computed itself stands between the operators before it and those after it.
  if (frames_.back().appended_before == appended_) {
    end_chain();
  }
  frames_.pop_back();
  recorded(now);
}

bool KernelRecorder::enter_operator(const char* name, const std::string& overload,
                                    c10::ArrayRef<const c10::IValue> arguments) {
  if (!in_step_ || rows_[frames_.back().row].row.kind == KernelRowKind::kLoading) {
    return false;
  }
  const double now = charge();
  OperatorCall call = capture(name, overload, arguments);
  const std::size_t row = row_at(key_of(call), KernelRowKind::kOperator, name);
  push(row, "");
  Frame& frame = frames_.back();
  frame.in_pointwise = frame.in_pointwise || is_pointwise(name);
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      const at::Tensor& tensor = argument.toTensor();
      frame.inputs.push_back(place_of(tensor));
      frame.elements = std::max(frame.elements, tensor.defined() ? tensor.numel() : 0);
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        frame.inputs.push_back(place_of(tensor));
        frame.elements = std::max(frame.elements, tensor.defined() ? tensor.numel() : 0);
      }
    }
  }
  if (rows_[row].call.name.empty()) {
    rows_[row].row.shapes = shapes_text(call);
    const std::vector<TensorShape> tensors = call.tensors();
    const auto first = std::find_if(tensors.begin(), tensors.end(),
                                    [](const TensorShape& tensor) { return tensor.defined; });
    if (first != tensors.end()) {
      rows_[row].row.dtype = dtype_name(first->dtype);
    }
    rows_[row].call = std::move(call);
  }
  recorded(now);
  frame.begin_s = mark_s_;
  frame.recording_s = recording_s_;
  return true;
}

void KernelRecorder::leave_operator(const std::vector<c10::IValue>& outputs) {
  if (!in_step_) {
    return;
  }
  const double now = charge();
  const double seconds = pop();
  const Frame frame = std::move(frames_.back());
  frames_.pop_back();
  RecordedRow& recorded_row = rows_[frame.row];
  bool views_only = true;
  for (const c10::IValue& output : outputs) {
    views_only =
        views_only && output.isTensor() && contains(frame.inputs, place_of(output.toTensor()));
  }
  const std::string& name = recorded_row.row.name;
  const bool in_place = name.back() == '_' || recorded_row.call.overload == "out";
  if (recorded_row.row.calls == 1) {
    for (const c10::IValue& output : outputs) {
      if (output.isTensor()) {
        recorded_row.call.outputs.push_back(shape_of(output.toTensor()));
      }
    }
    recorded_row.row.flops = flops_of(recorded_row.call);
    recorded_row.row.bytes =
        (views_only && !in_place) || only_makes_room(name) ? 0 : bytes_of(recorded_row.call);
  }
  const bool outer_pointwise = !frames_.empty() && frames_.back().in_pointwise;
  if (!outer_pointwise && ((!views_only || in_place) || is_pointwise(name))) {
    note_chain(frame, is_pointwise(name), seconds, outputs);
  }
  recorded(now);
}

void KernelRecorder::note_chain(const Frame& frame, bool pointwise, double seconds,
                                const std::vector<c10::IValue>& outputs) {
  const void* made =
      !outputs.empty() && outputs[0].isTensor() ? place_of(outputs[0].toTensor()) : nullptr;
  if (!pointwise) {
    // Room that is made does not come between two passes, unless it is the chain's own room anew.
    if (!only_makes_room(rows_[frame.row].row.name) || made == chain_.last) {
      end_chain();
    }
    return;
  }
  if (chain_.rows.empty() || chain_.elements != frame.elements ||
      !contains(frame.inputs, chain_.last)) {
    end_chain();
    chain_.elements = frame.elements;
  }
  chain_.rows.push_back(static_cast<int>(frame.row));
  chain_.seconds.push_back(seconds);
  chain_.last = made;
  ++appended_;
}

void KernelRecorder::end_chain() {
  if (chain_.rows.size() >= 2) {
    PointwiseChain& chain = chains_[chain_.rows];
    chain.rows = chain_.rows;
    chain.calls += 1;
    for (const double seconds : chain_.seconds) {
      chain.total_s += seconds;
    }
    chain.longest_s += *std::max_element(chain_.seconds.begin(), chain_.seconds.end());
  }
  chain_ = {};
}

std::vector<RecordedRow> KernelRecorder::rows() const {
  std::vector<RecordedRow> result = rows_;
  const auto steps = static_cast<double>(std::max<int64_t>(1, steps_));
  for (RecordedRow& one : result) {
    one.row.calls /= steps;
    one.row.self_s /= steps;
    one.row.total_s /= steps;
    // What mostly calls others does none of it itself.
    if (one.row.self_s < kOwnShare * one.row.total_s) {
      one.row.flops = 0;
      one.row.bytes = 0;
    }
  }
  return result;
}

std::vector<PointwiseChain> KernelRecorder::chains() const {
  std::vector<PointwiseChain> result;
  const auto steps = static_cast<double>(std::max<int64_t>(1, steps_));
  for (const auto& [rows, chain] : chains_) {
    result.push_back(chain);
    result.back().calls /= steps;
    result.back().total_s /= steps;
    result.back().longest_s /= steps;
  }
  return result;
}

KernelMark::KernelMark(KernelRowKind kind, const std::string& name, const std::string& layer)
    : recorder_(KernelRecorder::of_this_thread()) {
  if (recorder_ != nullptr) {
    recorder_->enter(kind, name, layer);
  }
}

KernelMark::~KernelMark() {
  if (recorder_ != nullptr) {
    recorder_->leave();
  }
}

}  // namespace millrace::internal
