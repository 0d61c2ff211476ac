# What -DTROUPE_CLIENT_ONLY=ON would build: the client's library and the command, and nothing that needs LibTorch.
#   cmake -DBUILD=… -DSOURCE=… -DCOMPILER=… -P client_only.cmake
set(work ${BUILD}/client-only)
file(REMOVE_RECURSE ${work})

function(run out)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${output}")
  endif()
  set(${out} "${output}" PARENT_SCOPE)
endfunction()

run(said ${CMAKE_COMMAND} --preset release -S ${SOURCE} -B ${work} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DTROUPE_CLIENT_ONLY=ON -DTROUPE_LIBTORCH=/nowhere)
run(commands ${CMAKE_COMMAND} --build ${work} -- -t commands all)
# What they write, relative to the build folder.
string(REGEX MATCHALL " -o [^ \n]+" outputs "${commands}")
list(LENGTH outputs count)
if(NOT commands MATCHES " -o bin/troupe " OR NOT commands MATCHES "client/libtroupe_client.a")
  message(FATAL_ERROR "the client or the command is not built:\n${commands}")
endif()
foreach(output IN LISTS outputs)
  if(output MATCHES " (tests|benchmarks|examples|actors|kernels|transport/tensor)/|torch")
    message(FATAL_ERROR "built besides the client and the command:${output}")
  endif()
endforeach()
if(count GREATER 90)
  message(FATAL_ERROR "${count} files are compiled or linked for the client and the command, 90 at most")
endif()
message(STATUS "client only: ${count} files are compiled or linked")
file(REMOVE_RECURSE ${work})
