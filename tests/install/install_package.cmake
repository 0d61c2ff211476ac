# cmake -DBUILD=... -DSOURCE=... -DCOMPILER=... -P install_package.cmake
set(work ${BUILD}/install-test)
file(REMOVE_RECURSE ${work})

function(run)
  cmake_parse_arguments(arg "" "EXPECT;MATCHES" "COMMAND" ${ARGN})
  execute_process(COMMAND ${arg_COMMAND} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output
    TIMEOUT 600)
  list(JOIN arg_COMMAND " " line)
  if(NOT result STREQUAL arg_EXPECT)
    message(FATAL_ERROR "${line}\nexited with ${result}, not ${arg_EXPECT}:\n${output}")
  endif()
  if(arg_MATCHES AND NOT output MATCHES "${arg_MATCHES}")
    message(FATAL_ERROR "${line}\nprinted nothing like \"${arg_MATCHES}\":\n${output}")
  endif()
endfunction()

run(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first --component client EXPECT 0)
# The package must not know where it was installed to.
file(RENAME ${work}/first ${work}/prefix)
file(GLOB_RECURSE texts ${work}/prefix/*.cmake ${work}/prefix/*.h)
foreach(file IN LISTS texts)
  file(READ ${file} text)
  foreach(path ${work} ${SOURCE}/)
    string(FIND "${text}" "${path}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} names a folder of the machine it was built on: ${path}")
    endif()
  endforeach()
endforeach()

run(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${SOURCE}/examples/cmake_project -B ${work}/build
  -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release EXPECT 0)
run(COMMAND ${CMAKE_COMMAND} --build ${work}/build EXPECT 0)
run(COMMAND ${work}/build/paint EXPECT 2 MATCHES "usage: paint")
# A model plugin, against headers alone.
if(TORCH)
  run(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix --component models EXPECT 0)
  run(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${SOURCE}/examples/model_plugin -B ${work}/plugin
    -DCMAKE_PREFIX_PATH=${work}/prefix -DTROUPE_TORCH_INCLUDE_DIR=${TORCH} -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_BUILD_TYPE=Debug EXPECT 0)
  run(COMMAND ${CMAKE_COMMAND} --build ${work}/plugin EXPECT 0)
  # The model is read by it; another's folder by Troupe as ever.
  run(COMMAND ${BUILD}/bin/troupe plan --model-plugin ${work}/plugin/lib/libplain_dit.so
    --model ${SOURCE}/tests/fixtures/tiny-pixart --prompt caption --sampler plain-euler EXPECT 0 MATCHES "mesh      1 actor")
endif()

# Nobody listens there: an error as a value, in bounded time.
run(COMMAND ${work}/build/paint ipc://${work}/nobody.sock caption ${work}/out.png EXPECT 1 MATCHES "paint: ")
file(REMOVE_RECURSE ${work})
