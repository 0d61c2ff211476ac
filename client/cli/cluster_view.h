#pragma once
#include <cstddef>
#include <string>

#include "client/cli/colour.h"
#include "client/cli/table.h"
#include "troupe/client.h"

namespace troupe::cli {

/// Of an actor's or a job's state, as tables show it.
Colour state_colour(const std::string& state);
/// Of the cells under STATE.
CellColour state_column(const Row& heads);

/// Who lives where and does what, fitted into so many columns (0 = no limit): the rows of
/// `troupe status` for actors.
/// Of more than `most` actors the first, and how many there are.
std::string actors_text(const std::vector<ActorInfo>& all, std::size_t width,
                        std::size_t most = std::string::npos);
/// All that `troupe status` prints.
std::string status_text(const ClusterInfo& cluster, std::size_t width,
                        std::size_t most = std::string::npos);

}  // namespace troupe::cli
