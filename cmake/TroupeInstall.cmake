# Install rules in components, and the package that find_package(Troupe) reads:
#   client     public headers, the archives behind troupe::client, the package config
#   runtime    troupe, troupe-host and troupe-actor, the libraries for GPUs, and a link to LibTorch
#   models     headers for model plugins
#   libtorch   LibTorch itself in place of the link, for a prefix that is copied to other machines
#   libraries  copies of the other libraries that they load, but for those of the C and C++ compiler
#   demo       the demo's model
# An installation of everything leaves out `libraries` and `demo`, which scripts/package asks for by name, and, without
# TROUPE_INSTALL_LIBTORCH, `libtorch`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
option(TROUPE_INSTALL_LIBTORCH "Install LibTorch's libraries along with troupe-actor" OFF)
set(troupe_libtorch_dir ${CMAKE_INSTALL_LIBDIR}/troupe/libtorch)
set(troupe_libraries_dir ${CMAKE_INSTALL_LIBDIR}/troupe/libraries)

# troupe_installed_program(TARGET FOLDER...): installs a program that looks for libraries in these folders of its prefix.
# They count for the libraries of its libraries too (RPATH, not RUNPATH): copies of a system's libraries have no path.
function(troupe_installed_program target)
  set(paths "")
  foreach(folder IN LISTS ARGN)
    file(RELATIVE_PATH from_bin /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${folder})
    list(APPEND paths $ORIGIN/${from_bin})
  endforeach()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${paths}")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS ${target} RUNTIME_DEPENDENCY_SET troupe_libraries
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endfunction()

# troupe_collect_exports(OUT TARGET): TARGET and every target of ours that linking it needs.
function(troupe_collect_exports out target)
  set(pending ${target})
  set(seen "")
  while(pending)
    list(POP_FRONT pending item)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.+)>$" "\\1" item "${item}")
    if(NOT TARGET "${item}")
      continue()
    endif()
    get_target_property(real ${item} ALIASED_TARGET)
    if(real)
      set(item ${real})
    endif()
    get_target_property(is_imported ${item} IMPORTED)
    if(is_imported OR item IN_LIST seen OR NOT item MATCHES "^troupe_")
      continue()
    endif()
    list(APPEND seen ${item})
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(libraries ${item} ${property})
      if(libraries)
        list(APPEND pending ${libraries})
      endif()
    endforeach()
  endwhile()
  set(${out} ${seen} PARENT_SCOPE)
endfunction()

if(TARGET troupe_client)
  troupe_collect_exports(troupe_exports troupe_client)
  foreach(target IN LISTS troupe_exports)
    string(REGEX REPLACE "^troupe_" "" export_name ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${export_name})
  endforeach()
  target_include_directories(troupe_client INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set(troupe_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
  install(TARGETS ${troupe_exports} EXPORT TroupeTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/troupe COMPONENT client)
  install(DIRECTORY client/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT client
    FILES_MATCHING PATTERN "*.h")
  install(EXPORT TroupeTargets NAMESPACE troupe:: DESTINATION ${troupe_package_dir} COMPONENT client)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TroupeConfig.cmake.in
    ${CMAKE_CURRENT_BINARY_DIR}/TroupeConfig.cmake INSTALL_DESTINATION ${troupe_package_dir})
  write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/TroupeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake
    DESTINATION ${troupe_package_dir} COMPONENT client)
endif()

# What model plugins are compiled with (examples/model_plugin).
foreach(room base kernels models/spec models/dit models/samplers models/plugin)
  install(DIRECTORY ${room}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe-models/${room} COMPONENT models
    FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES models/unpack_weights.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe-models/models COMPONENT models)
if(TARGET troupe)
  troupe_installed_program(troupe ${troupe_libraries_dir})
  # Manual pages and completion are what the installed command says of itself.
  configure_file(cmake/install_pages.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/install_pages.cmake @ONLY)
  install(SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/install_pages.cmake COMPONENT runtime)
  install(DIRECTORY examples/demo/model/ DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/demo COMPONENT demo EXCLUDE_FROM_ALL)
endif()
if(TARGET troupe-host)
  troupe_installed_program(troupe-host ${troupe_libraries_dir})
endif()
if(TARGET troupe-actor)
  troupe_installed_program(troupe-actor ${troupe_libraries_dir} ${troupe_libtorch_dir}/torch/lib)
  set(libtorch_prefix "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${troupe_libtorch_dir}/torch")
  set(unless_asked_for EXCLUDE_FROM_ALL)
  if(TROUPE_INSTALL_LIBTORCH)
    set(unless_asked_for "")
  else()
    # A copy that is there is left alone.
    install(CODE "if(NOT IS_DIRECTORY \"${libtorch_prefix}/lib\")
      file(MAKE_DIRECTORY \"${libtorch_prefix}\")
      file(CREATE_LINK \"${TROUPE_TORCH_LIB_DIR}\" \"${libtorch_prefix}/lib\" SYMBOLIC)
    endif()" COMPONENT runtime)
  endif()
  install(CODE "file(REMOVE_RECURSE \"${libtorch_prefix}\")" COMPONENT libtorch ${unless_asked_for})
  # libtorch_cpu.so finds its runtime libraries at ../../nvidia from where it lies.
  file(REAL_PATH ${TROUPE_TORCH_LIB_DIR}/../.. libtorch_root)
  install(DIRECTORY ${libtorch_root}/torch/lib DESTINATION ${troupe_libtorch_dir}/torch COMPONENT libtorch ${unless_asked_for}
    FILES_MATCHING PATTERN "*.so*" PATTERN "libtorch_python.so" EXCLUDE)
  file(GLOB libtorch_infos ${libtorch_root}/torch-*.dist-info ${libtorch_root}/nvidia_*.dist-info)
  install(DIRECTORY ${libtorch_infos} DESTINATION ${troupe_libtorch_dir} COMPONENT libtorch ${unless_asked_for}
    FILES_MATCHING REGEX "/(licenses/|LICENSE|NOTICE|License)")
  if(IS_DIRECTORY ${libtorch_root}/nvidia)
    install(DIRECTORY ${libtorch_root}/nvidia DESTINATION ${troupe_libtorch_dir} COMPONENT libtorch ${unless_asked_for}
      FILES_MATCHING PATTERN "*.so*" PATTERN "include" EXCLUDE)
  endif()
endif()
install(RUNTIME_DEPENDENCY_SET troupe_libraries
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\\+\\+|gomp|torch.*|c10.*|cupti|cudart)\\.so"
  DESTINATION ${troupe_libraries_dir} COMPONENT libraries EXCLUDE_FROM_ALL)
foreach(component client runtime)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/troupe COMPONENT ${component})
endforeach()

# Everything that the component `runtime` installs.
add_custom_target(troupe_programs)
foreach(target troupe troupe-host troupe-actor troupe_kernels_cuda troupe_cuda_graph troupe_nccl)
  if(TARGET ${target})
    add_dependencies(troupe_programs ${target})
  endif()
endforeach()
