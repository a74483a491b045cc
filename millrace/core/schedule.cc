#include "millrace/core/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

// A work item: what is counted through the microbatches.
using Work = std::pair<ActionKind, int32_t>;                              // kind, stage
using RankWork = std::pair<std::size_t, std::pair<ActionKind, int32_t>>;  // rank, work

struct Span {
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t most = -1;
  void add(const Action& action) {
    least = std::min(least, action.first);
    most = std::max(most, action.last);
  }
};

template <typename Key, typename MakeKey>
std::map<Key, Span> spans_of(const ActionLists& lists, const MakeKey& make_key) {
  std::map<Key, Span> spans;
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    for (const Action& action : lists[rank]) {
      if (action.first != kNone) {
        spans[make_key(rank, action)].add(action);
      }
    }
  }
  return spans;
}

std::map<RankWork, Span> spans_by_rank(const ActionLists& lists) {
  return spans_of<RankWork>(lists, [](std::size_t rank, const Action& action) {
    return RankWork{rank, {action.kind, action.stage}};
  });
}

std::map<Work, Span> spans_by_work(const ActionLists& lists) {
  return spans_of<Work>(lists, [](std::size_t /*rank*/, const Action& action) {
    return Work{action.kind, action.stage};
  });
}

Error cannot_unroll(const Schedule& schedule, const std::string& reason) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("schedule {} cannot be unrolled: {}", in_quotes(schedule.name), reason));
}

// Microbatches that the epilogue lies behind where the period starts, so that after R repeats it is
// moved by R*period_microbatches + this.
int64_t epilogue_offset(const Schedule& schedule) {
  const auto period = spans_by_rank(schedule.period);
  std::optional<int64_t> offset;
  for (const auto& [work, span] : spans_by_rank(schedule.epilogue)) {
    const auto same = period.find(work);
    if (same == period.end()) {
      continue;
    }
    const int64_t difference = same->second.least - span.least;
    if (offset && *offset != difference) {
      throw cannot_unroll(
          schedule, fmt::format("the epilogue of rank {} does not go on where the period stops: "
                                "{}{} is off by {} microbatches, others by {}",
                                work.first, work.second.second, to_string(work.second.first),
                                difference, *offset));
    }
    offset = difference;
  }
  // An epilogue of work that no period has is taken as written after one period.
  return offset.value_or(-schedule.period_microbatches);
}

// Least number of repeats after which every kind and stage has run microbatches up to `last`.
int64_t repeats_to_cover(const Schedule& schedule, int64_t last, int64_t offset) {
  const int64_t advance = schedule.period_microbatches;
  auto most_in_prologue = spans_by_work(schedule.prologue);
  const auto in_period = spans_by_work(schedule.period);
  auto in_epilogue = spans_by_work(schedule.epilogue);
  int64_t repeats = 0;
  const auto need = [&](const Work& work) {
    const auto prologue = most_in_prologue.find(work);
    if (prologue != most_in_prologue.end() && prologue->second.most >= last) {
      return;
    }
    // Whichever part reaches farthest after R repeats: period at (R-1)*advance, epilogue at
    // R*advance + offset.
    int64_t reach = std::numeric_limits<int64_t>::min();
    if (const auto period = in_period.find(work); period != in_period.end()) {
      reach = period->second.most - advance;
    }
    if (const auto epilogue = in_epilogue.find(work); epilogue != in_epilogue.end()) {
      reach = std::max(reach, epilogue->second.most + offset);
    }
    if (reach == std::numeric_limits<int64_t>::min()) {
      throw cannot_unroll(schedule,
                          fmt::format("{}{} of microbatch {} is neither in the prologue nor in the "
                                      "period or epilogue",
                                      work.second, to_string(work.first), last));
    }
    repeats = std::max(repeats, (last - reach + advance - 1) / advance);
  };
  for (const ActionLists* part : {&schedule.prologue, &schedule.period, &schedule.epilogue}) {
    for (const auto& [work, span] : spans_by_work(*part)) {
      need(work);
    }
  }
  return repeats;
}

// Appends `part` moved by `shift` microbatches, without what lies at or beyond `limit`.
void append(ActionLists& lists, const ActionLists& part, int64_t shift, int64_t limit,
            const Schedule& schedule) {
  for (std::size_t rank = 0; rank < part.size(); ++rank) {
    for (Action action : part[rank]) {
      if (action.first != kNone) {
        action.first += shift;
        action.last = std::min(action.last + shift, limit - 1);
        if (action.first >= limit) {
          continue;
        }
        if (action.first < 0) {
          throw cannot_unroll(schedule, "its epilogue begins before the first microbatch");
        }
      }
      lists[rank].push_back(action);
    }
  }
}

Value to_value(const ActionLists& lists) {
  Value value = Value::list();
  for (const ActionList& list : lists) {
    value.push(Value::of(to_string(list)));
  }
  return value;
}

// One text a rank. The whole part may be left out or empty unless it is required.
ActionLists lists_from(Reader& reader, const char* key, const Schedule& schedule, bool required) {
  ActionLists lists;
  if (!required && reader.raw(key) == nullptr) {
    return lists;
  }
  const std::vector<std::string> texts = reader.texts(key);
  if (texts.size() != static_cast<std::size_t>(schedule.num_ranks) &&
      (required || !texts.empty())) {
    throw reader.error(key, fmt::format("expected one list of actions for each of the {} ranks, "
                                        "found {}",
                                        schedule.num_ranks, texts.size()));
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto refuse = [&](const std::string& message) {
      throw reader.error(fmt::format("{}[{}]", key, rank), message).at_rank(static_cast<int>(rank));
    };
    try {
      lists.push_back(parse_actions(texts[rank]));
    } catch (const Error& error) {
      refuse(error.message());
    }
    for (const Action& action : lists.back()) {
      if (action.stage >= schedule.num_stages) {
        refuse(fmt::format("action {} is of stage {}, but there are {} stages", to_string(action),
                           action.stage, schedule.num_stages));
      }
    }
  }
  return lists;
}

void read_stage_ranks(Schedule& schedule, Reader& reader) {
  const Value* value = reader.raw("stage_ranks");
  if (value == nullptr || value->kind != Value::Kind::kArray ||
      value->array.size() != static_cast<std::size_t>(schedule.num_stages)) {
    throw reader.error(
        "stage_ranks",
        fmt::format("expected a list of ranks for each of the {} stages", schedule.num_stages));
  }
  for (std::size_t s = 0; s < value->array.size(); ++s) {
    const Value& list = value->array[s];
    const auto refuse = [&](const std::string& found) {
      throw reader
          .error(fmt::format("stage_ranks[{}]", s),
                 fmt::format("expected different ranks below {}, at least one, found {}",
                             schedule.num_ranks, found))
          .at_stage(static_cast<int>(s));
    };
    std::vector<int> ranks;
    for (const Value& item : list.array) {
      if (item.kind != Value::Kind::kInteger || item.integer < 0 ||
          item.integer >= schedule.num_ranks) {
        refuse(to_json(item, -1));
      }
      const int rank = static_cast<int>(item.integer);
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
        refuse(fmt::format("{} twice", rank));
      }
      ranks.push_back(rank);
    }
    if (ranks.empty()) {
      refuse("none");
    }
    schedule.stage_ranks.push_back(std::move(ranks));
  }
}

bool holds_actions(const ActionLists& lists) {
  return std::any_of(lists.begin(), lists.end(), [](const ActionList& l) { return !l.empty(); });
}

int bounded(Reader& reader, const char* key) {
  const int64_t value = reader.count(key, 1);
  if (value > kMostRanks) {
    throw reader.error(key, fmt::format("expected at most {}, found {}", kMostRanks, value));
  }
  return static_cast<int>(value);
}

}  // namespace

ActionLists unroll(const Schedule& schedule, int64_t num_steps) {
  MILLRACE_CHECK(num_steps >= 1, "unroll needs at least one step");
  ActionLists lists(static_cast<std::size_t>(schedule.num_ranks));
  for (const ActionLists* part : {&schedule.prologue, &schedule.period, &schedule.epilogue}) {
    if (part->size() > lists.size()) {
      throw cannot_unroll(schedule, fmt::format("it has {} ranks but lists for {}",
                                                schedule.num_ranks, part->size()));
    }
  }
  const int64_t limit = num_steps * schedule.num_microbatches;
  if (schedule.flush) {
    for (int64_t step = 0; step < num_steps; ++step) {
      append(lists, schedule.period, step * schedule.num_microbatches, limit, schedule);
    }
    return lists;
  }
  if (schedule.period_microbatches < 1) {
    throw cannot_unroll(schedule, "period_microbatches must be 1 or more");
  }
  const int64_t offset = epilogue_offset(schedule);
  const int64_t repeats = repeats_to_cover(schedule, limit - 1, offset);
  append(lists, schedule.prologue, 0, limit, schedule);
  for (int64_t r = 0; r < repeats; ++r) {
    append(lists, schedule.period, r * schedule.period_microbatches, limit, schedule);
  }
  append(lists, schedule.epilogue, repeats * schedule.period_microbatches + offset, limit,
         schedule);
  return lists;
}

int LoweredSchedule::replica_of(int rank, int stage) const {
  const std::vector<int>& holders = stage_ranks.at(static_cast<std::size_t>(stage));
  const auto found = std::find(holders.begin(), holders.end(), rank);
  return found == holders.end() ? -1 : static_cast<int>(found - holders.begin()) / split_parts;
}

Schedule schedule_from(const Document& document) {
  Reader reader(document);
  expect_artifact(reader, "schedule", 1);
  Schedule schedule;
  schedule.name = reader.text("name");
  schedule.policy = reader.text("policy", schedule.policy);
  schedule.flush = reader.boolean("flush", true);
  schedule.num_ranks = bounded(reader, "num_ranks");
  schedule.num_stages = bounded(reader, "num_stages");
  schedule.num_microbatches = bounded(reader, "num_microbatches");
  schedule.period_microbatches = reader.count("period_microbatches", 1, schedule.num_microbatches);
  if (schedule.flush && schedule.period_microbatches != schedule.num_microbatches) {
    throw reader.error("period_microbatches",
                       fmt::format("with a flush the period is a step: expected num_microbatches "
                                   "({}), found {}",
                                   schedule.num_microbatches, schedule.period_microbatches));
  }
  if (schedule.period_microbatches % schedule.num_microbatches != 0) {
    throw reader.error("period_microbatches",
                       fmt::format("expected whole steps of {} microbatches, found {}",
                                   schedule.num_microbatches, schedule.period_microbatches));
  }
  if (schedule.period_microbatches > kMostRanks) {
    throw reader.error(
        "period_microbatches",
        fmt::format("expected at most {}, found {}", kMostRanks, schedule.period_microbatches));
  }
  read_stage_ranks(schedule, reader);
  schedule.prologue = lists_from(reader, "prologue", schedule, false);
  schedule.period = lists_from(reader, "period", schedule, true);
  schedule.epilogue = lists_from(reader, "epilogue", schedule, false);
  for (const auto& [key, lists] :
       {std::pair("prologue", &schedule.prologue), std::pair("epilogue", &schedule.epilogue)}) {
    if (schedule.flush && holds_actions(*lists)) {
      throw reader.error(key,
                         "with a flush there is only the period; move the actions there, or set "
                         "flush to false");
    }
  }
  reader.finish();
  return schedule;
}

Value to_value(const Schedule& schedule) {
  Value root = Value::map();
  root.set("artifact", Value::of("schedule"));
  root.set("version", Value::of(1));
  root.set("name", Value::of(schedule.name));
  root.set("policy", Value::of(schedule.policy));
  root.set("flush", Value::of(schedule.flush));
  root.set("num_ranks", Value::of(schedule.num_ranks));
  root.set("num_stages", Value::of(schedule.num_stages));
  root.set("num_microbatches", Value::of(schedule.num_microbatches));
  root.set("period_microbatches", Value::of(schedule.period_microbatches));
  Value stages = Value::list();
  for (const std::vector<int>& ranks : schedule.stage_ranks) {
    Value list = Value::list();
    for (const int rank : ranks) {
      list.push(Value::of(rank));
    }
    stages.push(std::move(list));
  }
  root.set("stage_ranks", std::move(stages));
  root.set("prologue", to_value(schedule.prologue));
  root.set("period", to_value(schedule.period));
  root.set("epilogue", to_value(schedule.epilogue));
  return root;
}

}  // namespace millrace
