// Replay of action lists without times: does every rank reach its end when sends are held until
// taken?
#pragma once

#include <functional>
#include <vector>

#include "millrace/schedule/internal/places.h"

namespace millrace::internal {

// Fills in the actions that must have run before the one at `place` may run. Places out of its own
// list are waits.
using Requirements = std::function<void(Place place, std::vector<Place>& required)>;

// Runs all lists as far as they go. For each circle of ranks that wait for one another one finding,
// at a rank of the circle, that names every wait of it. Waits inside one list are left to the other
// checks.
void check_deadlock(Check& check, const Requirements& requirements);

}  // namespace millrace::internal
