// DeltaRule: what rules share whose replicas train apart, gather the deltas of their own updates
// and now and then add them to the server's vector. The replica keeps the velocity, which nothing
// that it fetches resets, and the server only adds: so one replica that pushes and fetches every
// update takes the very steps of plain SGD.
//
// Our choice: how GPU A-SGD (arXiv:1312.6186) treats momentum at its server is not known.
#pragma once

#include "millrace/rule/internal/first_come.h"

namespace millrace {

class DeltaRule : public FirstCome<ServerRule> {
 public:
  // Gathers at most `most` updates between two pushes.
  explicit DeltaRule(int64_t most) : most_(most) {}

  Task begin(Port& port) override;
  // Pushes what is left, so that the server has all deltas after every segment.
  Task finish(Port& port) override;

 protected:
  // One update of the replica's own, none where it has no samples: gathers its delta, which stays
  // in the vector that this gives.
  Vector& update_locally(Port& port);
  bool gathered_any() const { return num_gathered_ > 0; }
  // The sum of deltas since the last push. After a push: clear() before the next update.
  Vector& gathered() { return *gathered_; }
  void clear() { num_gathered_ = 0; }

 private:
  // Replies with the vector as it was or as it is, as the rule says, and adds.
  void on_request(Port& port, const Message& request) override;
  // Whether a reply to a push is the vector before the push.
  virtual bool replies_before_adding() const { return false; }

  int64_t most_;
  int64_t num_gathered_ = 0;
  Vector* gathered_ = nullptr;
  Vector* latest_ = nullptr;  // null where every update is pushed
};

}  // namespace millrace
