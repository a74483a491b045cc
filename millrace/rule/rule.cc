#include "millrace/rule/rule.h"

#include "millrace/base/error.h"
#include "millrace/rule/arithmetic.h"

namespace millrace {

Task Rule::begin(Port& /*port*/) { co_return; }

Task Rule::gradients_ready(Port& /*port*/, Range /*range*/, bool /*last*/) { co_return; }

Task Rule::finish(Port& /*port*/) { co_return; }

Task Rule::settle(Port& port, Vector& result) {
  copy(port, result, port.weights());
  co_return;
}

Task Rule::serve(Port& /*port*/) {
  MILLRACE_CHECK(false, "a rule without a server was asked to serve");
  co_return;
}

}  // namespace millrace
