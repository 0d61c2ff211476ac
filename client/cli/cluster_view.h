#pragma once
#include <cstddef>
#include <string>

#include "client/cli/colour.h"
#include "client/cli/table.h"
#include "troupe/client.h"

namespace troupe::cli {

/// Returns the colour of an actor's or a job's state in tables.
Colour state_colour(const std::string& state);
/// Returns the colours of the cells under STATE.
CellColour state_column(const Row& heads);

/// Returns the rows of `troupe status` for actors (host, state, current work), fitted into `width`
/// columns (0 = no limit). Of more than `most` actors it has the first, and the number of all.
std::string actors_text(const std::vector<ActorInfo>& all, std::size_t width,
                        std::size_t most = std::string::npos);
/// Returns all that `troupe status` prints.
std::string status_text(const ClusterInfo& cluster, std::size_t width,
                        std::size_t most = std::string::npos);

}  // namespace troupe::cli
