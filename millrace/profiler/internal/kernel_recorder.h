// Kernel recorder: attributes every second of a thread's steps to one row, whichever is innermost
// at that moment: a mark (layer, loss, loading, ...) or a libtorch operator, which libtorch tells
// of by its RecordFunction hooks. Rows therefore sum to the steps' time by construction, the
// recorder's own work being a row too.
//
// One thread: the one that made it, on which nothing else may record. Outside of a step that is
// recorded a mark costs the reading of one thread-local pointer, and operators cost nothing.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/profiler/internal/operator_call.h"
#include "millrace/profiler/kernel_profile.h"

namespace millrace::internal {

// A row while it is recorded: seconds and calls of all steps together.
struct RecordedRow {
  KernelRow row;
  OperatorCall call;  // of an operator: the first call
};

class KernelRecorder {
 public:
  explicit KernelRecorder(std::function<double()> clock = monotonic_s);
  ~KernelRecorder();
  KernelRecorder(const KernelRecorder&) = delete;
  KernelRecorder& operator=(const KernelRecorder&) = delete;

  // A step; time outside of one is nobody's. Time of a step in no mark or operator goes to the row
  // "between layers".
  void begin_step();
  void end_step();

  // A mark, nested. `layer` is where operators inside of it are said to run; empty: as outside.
  void enter(KernelRowKind kind, const std::string& name, const std::string& layer);
  void leave();

  // An operator, told by libtorch's hooks. Inside of loading it is not told apart.
  bool enter_operator(const char* name, const std::string& overload,
                      c10::ArrayRef<const c10::IValue> arguments);
  void leave_operator(const std::vector<c10::IValue>& outputs);

  // All rows and chains so far, their seconds and calls divided by the steps.
  std::vector<RecordedRow> rows() const;
  std::vector<PointwiseChain> chains() const;
  int64_t steps() const { return steps_; }
  double recorded_s() const { return recorded_s_; }  // of all steps

  static KernelRecorder* of_this_thread();

 private:
  struct Frame {
    std::size_t row = 0;
    double begin_s = 0;
    double recording_s = 0;  // spent recording before it began
    std::string layer;
    bool in_pointwise = false;        // it or one around it is pointwise
    std::size_t appended_before = 0;  // members of chains when it began
    std::vector<const void*> inputs;  // where the elements of its arguments are
    int64_t elements = 0;             // of the largest
  };
  // The chain that may go on.
  struct OpenChain {
    std::vector<int> rows;
    std::vector<double> seconds;
    int64_t elements = 0;
    const void* last = nullptr;  // what its last member made
  };

  double charge();  // the time since the last reading to the innermost row; returns now
  void recorded(double since_s);
  std::size_t row_at(const std::string& key, KernelRowKind kind, const std::string& name);
  void push(std::size_t row, std::string layer);
  double pop();  // its seconds with what ran inside, without recording
  void note_chain(const Frame& frame, bool pointwise, double seconds,
                  const std::vector<c10::IValue>& outputs);
  void end_chain();

  std::function<double()> clock_;
  at::CallbackHandle handle_ = 0;  // of a step
  bool in_step_ = false;
  int64_t steps_ = 0;
  double step_begin_s_ = 0;
  double recorded_s_ = 0;
  double mark_s_ = 0;
  double recording_s_ = 0;
  std::vector<Frame> frames_;
  std::vector<RecordedRow> rows_;
  std::map<std::string, std::size_t> row_of_;
  OpenChain chain_;
  std::size_t appended_ = 0;
  std::map<std::vector<int>, PointwiseChain> chains_;
};

// A mark for the time that it lives, where this thread is recorded.
class KernelMark {
 public:
  KernelMark(KernelRowKind kind, const std::string& name, const std::string& layer);
  ~KernelMark();
  KernelMark(const KernelMark&) = delete;
  KernelMark& operator=(const KernelMark&) = delete;

 private:
  KernelRecorder* recorder_;
};

}  // namespace millrace::internal
