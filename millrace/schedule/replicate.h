// Equal copies of a schedule, for replicas of a whole pipeline.
#pragma once

#include "millrace/core/schedule.h"

namespace millrace {

// `copies` of the schedule side by side: copy k on positions k*P .. (k+1)*P-1, every stage on its
// positions of all copies. A step holds copies x num_microbatches, the k-th block of
// num_microbatches of them run by copy k. Throws Error(kInvalidArgument) for copies < 1, and for an
// action whose microbatches lie in several steps.
Schedule replicate(const Schedule& schedule, int copies);

}  // namespace millrace
