#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <vector>

#include "millrace/report/internal/escape.h"
#include "millrace/report/internal/paint.h"
#include "millrace/report/report.h"

namespace millrace {
namespace {

using internal::json_string;

// Threads are told apart by number only: lane l of rank r is r + l * kLaneStride.
constexpr std::size_t kLaneStride = 1000000;

// Slices of one thread must nest. A simulated send may last while its rank computes on, so what
// overlaps goes to the first lane that is free.
class Lanes {
 public:
  std::size_t place(double start_s, double end_s) {
    const auto free = std::find_if(ends_s_.begin(), ends_s_.end(), [&](double end) {
      return end <= start_s + 1e-12;  // back to back, rounding aside
    });
    const auto lane = static_cast<std::size_t>(free - ends_s_.begin());
    if (free == ends_s_.end()) {
      ends_s_.push_back(end_s);
    } else {
      *free = end_s;
    }
    return lane;
  }
  std::size_t size() const { return ends_s_.size(); }

 private:
  std::vector<double> ends_s_;
};

class Writer {
 public:
  void name(const char* what, std::size_t process, std::size_t thread, const std::string& text) {
    begin_event();
    fmt::format_to(out(), R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})",
                   what, process, thread, json_string(text));
  }

  void sort_index(const char* what, std::size_t process, std::size_t thread, std::size_t index) {
    begin_event();
    fmt::format_to(out(),
                   R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", what,
                   process, thread, index);
  }

  void slice(const TraceEvent& event, std::size_t process, std::size_t thread) {
    const Action& action = event.action;
    open_slice(to_string(action), internal::kPaints[internal::paint_of(action.kind)].name,
               event.start_s, event.end_s, process, thread);
    fmt::format_to(out(), R"("stage":{})", action.stage);
    if (action.first != kNone) {
      fmt::format_to(out(), R"(,"microbatch":{},"last_microbatch":{})", action.first, action.last);
    }
    if (action.peer != kNone) {
      fmt::format_to(out(), R"(,"peer":{})", action.peer);
    }
    if (action.version != kNone) {
      fmt::format_to(out(), R"(,"version":{})", action.version);
    }
    if (event.bytes != 0) {
      fmt::format_to(out(), R"(,"bytes":{})", event.bytes);
    }
    fmt::format_to(out(), R"(,"wait_us":{:.3f}}}}})", event.wait_s * 1e6);
    if (event.wait_s > 0) {
      // Where in the action the wait lies is not recorded; most waits come first.
      open_slice("wait", "wait", event.start_s, std::min(event.end_s, event.start_s + event.wait_s),
                 process, thread);
      fmt::format_to(out(), R"("for":{}}}}})", json_string(to_string(action)));
    }
  }

  std::string finish(std::size_t left_out) {
    return fmt::format(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"events_left_out\":{}}},"
        "\"traceEvents\":[{}\n]}}\n",
        left_out, text_);
  }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }
  void begin_event() { text_ += text_.empty() ? "\n" : ",\n"; }

  void open_slice(const std::string& name, std::string_view category, double start_s, double end_s,
                  std::size_t process, std::size_t thread) {
    begin_event();
    fmt::format_to(
        out(),
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{)",
        json_string(name), category, process, thread, start_s * 1e6, (end_s - start_s) * 1e6);
  }

  std::string text_;
};

std::string process_name(const Trace& trace) {
  return trace.source == "simulated" ? "predicted" : trace.source;
}

}  // namespace

std::string perfetto_json(const std::vector<const Trace*>& traces, std::size_t max_events) {
  Writer writer;
  std::size_t left_out = 0;
  std::size_t process = 0;
  for (const Trace* trace : traces) {
    if (trace == nullptr) {
      continue;
    }
    ++process;
    writer.name("process_name", process, 0, process_name(*trace));
    writer.sort_index("process_sort_index", process, 0, process);
    for (const RankTrace& rank : trace->ranks) {
      const std::size_t count = std::min(max_events, rank.events.size());
      left_out += rank.events.size() - count;
      const auto thread = static_cast<std::size_t>(rank.rank);
      Lanes lanes;
      for (std::size_t i = 0; i < count; ++i) {
        const TraceEvent& event = rank.events[i];
        writer.slice(event, process,
                     thread + kLaneStride * lanes.place(event.start_s, event.end_s));
      }
      const std::string name = fmt::format("rank {} ({})", rank.rank, describe_stages(rank.stages));
      for (std::size_t lane = 0; lane < std::max<std::size_t>(lanes.size(), 1); ++lane) {
        const std::size_t id = thread + kLaneStride * lane;
        writer.name("thread_name", process, id, lane == 0 ? name : name + ", at the same time");
        writer.sort_index("thread_sort_index", process, id, thread * 8 + lane);
      }
    }
  }
  return writer.finish(left_out);
}

}  // namespace millrace
