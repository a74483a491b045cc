// Laws of rules with a server that takes requests as they come: every replica's own steps, one
// order of requests that explains whatever the replicas got from the server, and the sum in the
// end.
#include <ATen/ops/zeros_like.h>

#include "millrace/base/error.h"
#include "millrace/train/internal/request_order.h"
#include "millrace/train/internal/rule_laws.h"

namespace millrace::internal {
namespace {

using Requests = std::vector<std::vector<ServerRequest>>;  // by replica

// Compares every reply along the order, and where it ends early the replies that nothing explains.
void compare_replies(const StageRun& run, Judge& judge, const Requests& requests,
                     const RequestOrder::Release& release) {
  RequestOrder order(run.initial, requests, release);
  const std::optional<std::vector<RequestOrder::Event>> events = order.find();
  if (!events) {
    judge.say("too many orders of requests to try: the server's sum was compared, not each reply");
    return;
  }
  at::Tensor vector = run.initial.clone();
  std::vector<std::size_t> taken(requests.size(), 0);
  std::vector<std::size_t> replied(requests.size(), 0);
  const auto compare = [&](std::size_t r, const at::Tensor& oracle) {
    const ServerRequest& request = requests[r][replied[r]];
    judge.expect(static_cast<int>(r), request.step, "as the server gave it", request.reply, oracle);
  };
  for (const RequestOrder::Event& event : *events) {
    const auto r = static_cast<std::size_t>(event.replica);
    if (event.takes_in) {
      const ServerRequest& request = requests[r][taken[r]++];
      if (event.replies && request.before) {
        compare(r, vector);
      }
      vector = request.keep == 1 ? vector : vector.mul(request.keep);
      vector = request.add.defined() ? vector.add(request.add) : vector;
      if (event.replies && !request.before) {
        compare(r, vector);
      }
    } else {
      compare(r, vector);
    }
    replied[r] += event.replies || !release.held ? 1 : 0;
  }
  for (std::size_t r = 0; r < requests.size() && !order.found_all(); ++r) {
    if (replied[r] < requests[r].size() && requests[r][replied[r]].reply.defined()) {
      const ServerRequest& next = requests[r][replied[r]];
      const bool adds = !release.held && !next.before && next.add.defined();
      compare(r, adds ? vector.mul(next.keep).add(next.add) : vector);
    }
  }
}

// Replicas push scaled deltas and take over the server's vector.
void check_scaled_push(const StageRun& run, Judge& judge, const RequestOrder::Release& release) {
  Requests requests(static_cast<std::size_t>(run.num_replicas()));
  at::Tensor server = run.initial.clone();
  for (int64_t step = 0; step < run.num_steps(); ++step) {
    for (int replica = 0; replica < run.num_replicas(); ++replica) {
      const at::Tensor delta =
          judge.optimize_own(replica, step).mul(run.own(step, replica) / run.all(step));
      server.add_(delta);
      requests[static_cast<std::size_t>(replica)].push_back(
          {.step = step, .add = delta, .reply = run.weights_after(step, replica)});
    }
  }
  compare_replies(run, judge, requests, release);
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    judge.expect_last(replica, run.weights_after(run.num_steps() - 1, replica));
  }
  judge.expect_settled(server);
}

// Replicas gather their deltas: they push every `push` updates and get the server's vector every
// `fetch`. With `before` that is the vector before the push, to which they add what they pushed.
void check_deltas(const StageRun& run, Judge& judge, int64_t push, int64_t fetch, bool before) {
  Requests requests(static_cast<std::size_t>(run.num_replicas()));
  at::Tensor server = run.initial.clone();
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    std::vector<ServerRequest>& own = requests[static_cast<std::size_t>(replica)];
    at::Tensor gathered;
    for (int64_t step = 0; step < run.num_steps(); ++step) {
      const at::Tensor delta = judge.optimize_own(replica, step);
      server.add_(delta);
      gathered = gathered.defined() ? gathered.add(delta) : delta;
      const bool pushes = (step + 1) % push == 0;
      const bool fetches = (step + 1) % fetch == 0;
      const at::Tensor& after = run.weights_after(step, replica);
      if (!fetches) {
        judge.expect_after(step, replica, run.weights_before(step, replica).add(delta));
      }
      if (pushes || fetches) {
        own.push_back({.step = step,
                       .add = pushes ? gathered : at::Tensor(),
                       .reply = !fetches ? at::Tensor()
                                : before ? after.sub(gathered)
                                         : after,
                       .before = before});
      }
      if (pushes) {
        gathered = at::Tensor();
      }
    }
    if (gathered.defined()) {
      own.push_back({.step = run.num_steps() - 1, .add = gathered});
    }
    judge.expect_last(replica, run.weights_after(run.num_steps() - 1, replica));
  }
  compare_replies(run, judge, requests, {});
  judge.expect_settled(server);
}

}  // namespace

void check_server_async(const StageRun& run, Judge& judge) { check_scaled_push(run, judge, {}); }

void check_server_bounded(const StageRun& run, Judge& judge) {
  check_scaled_push(run, judge, {.held = true, .most_lead = run.options.integer("staleness")});
}

void check_dssp(const StageRun& run, Judge& judge) {
  const int64_t range = run.options.integer("range");
  RequestOrder::Release release{.held = true};
  if (range == 0 || run.options.flag("cap")) {
    release.most_lead = run.options.integer("s_low") + range;
  }
  check_scaled_push(run, judge, release);
}

void check_asgd(const StageRun& run, Judge& judge) {
  const int64_t tau = run.options.integer("tau");
  check_deltas(run, judge, tau, tau, true);
}

void check_downpour(const StageRun& run, Judge& judge) {
  check_deltas(run, judge, run.options.integer("n_push"), run.options.integer("n_fetch"), false);
}

// Of an exchange the replica shows where the centre was: w' = w - alpha (w - c).
void check_easgd(const StageRun& run, Judge& judge) {
  const int64_t tau = run.options.integer("tau");
  const double alpha = run.options.number("alpha");
  Requests requests(static_cast<std::size_t>(run.num_replicas()));
  at::Tensor center = run.initial.clone();
  at::Tensor all = run.initial.mul(run.num_replicas() + 1);  // centre and weights
  for (int replica = 0; replica < run.num_replicas(); ++replica) {
    for (int64_t step = 0; step < run.num_steps(); ++step) {
      const at::Tensor delta = judge.optimize_own(replica, step);
      all.add_(delta);
      const at::Tensor moved = run.weights_before(step, replica).add(delta);
      const at::Tensor& after = run.weights_after(step, replica);
      if ((step + 1) % tau != 0 || alpha == 0) {
        judge.expect_after(step, replica, moved);
        continue;
      }
      requests[static_cast<std::size_t>(replica)].push_back(
          {.step = step,
           .keep = 1 - alpha,
           .add = moved.mul(alpha),
           .reply = moved.sub(moved.sub(after).div(alpha)),
           .before = true});
    }
    const at::Tensor& last = run.weights_after(run.num_steps() - 1, replica);
    judge.expect_last(replica, last);
    all.sub_(last);
  }
  compare_replies(run, judge, requests, {});
  judge.expect_settled(all);
}

}  // namespace millrace::internal
