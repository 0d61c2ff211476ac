#include "controller/actors/user_room.h"

#include <utility>

namespace troupe::user {

UserRoom::UserRoom(boost::asio::io_context& io, cluster::Outside& outside, Options options)
    : options_(std::move(options)),
      processes_(io, options_.processes,
                 [this](std::uint64_t id, std::uint64_t incarnation, const HostExit& how) {
                   actors_.exited(id, incarnation, how);
                   if (options_.on_exit) options_.on_exit();
                 }),
      actors_({.outside = outside,
               .launcher = processes_,
               .token = options_.processes.token,
               .note = options_.note}) {
  actors_.add_host({options_.host, options_.cores, options_.gpus});
}

void UserRoom::check_plugins(std::function<void(std::optional<std::string>)> done) {
  checked_ = std::move(done);
  check_next(0);
}

void UserRoom::check_next(std::size_t index) {
  if (index == options_.plugins.size()) return std::exchange(checked_, nullptr)(std::nullopt);
  processes_.describe(options_.plugins[index],
                      [this, index](wire::ClassList classes, std::string failure) {
                        if (failure.empty()) {
                          try {
                            actors_.add_classes(classes);
                          } catch (const std::exception& error) {
                            failure = error.what();
                          }
                        }
                        if (!failure.empty()) return std::exchange(checked_, nullptr)(failure);
                        check_next(index + 1);
                        if (options_.on_exit) options_.on_exit();
                      });
}

}  // namespace troupe::user
