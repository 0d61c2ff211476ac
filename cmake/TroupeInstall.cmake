# Install rules in three components, and the package that find_package(Troupe) reads:
#   client   public headers, the archives behind troupe::client, the package config
#   runtime  troupe, troupe-host and troupe-actor
#   models   headers for model plugins
#   libtorch LibTorch beside them (TROUPE_INSTALL_LIBTORCH), for a prefix that is copied to other machines
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
option(TROUPE_INSTALL_LIBTORCH "Install LibTorch's libraries along with troupe-actor" OFF)

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
if(TARGET troupe)
  install(TARGETS troupe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  # Manual pages and completion are what the installed command says of itself.
  configure_file(cmake/install_pages.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/install_pages.cmake @ONLY)
  install(SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/install_pages.cmake COMPONENT runtime)
endif()
if(TARGET troupe-host)
  install(TARGETS troupe-host RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()
if(TARGET troupe-actor)
  # An installed actor looks for LibTorch in its own prefix first, then where it was built against.
  set(troupe_libtorch_dir ${CMAKE_INSTALL_LIBDIR}/troupe/libtorch)
  file(RELATIVE_PATH from_bin /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${troupe_libtorch_dir}/torch/lib)
  set_target_properties(troupe-actor PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin};${TROUPE_TORCH_LIB_DIR}")
  install(TARGETS troupe-actor RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  if(TROUPE_INSTALL_LIBTORCH)
    # libtorch_cpu.so finds its runtime libraries at ../../nvidia from where it lies.
    file(REAL_PATH ${TROUPE_TORCH_LIB_DIR}/../.. libtorch_root)
    install(DIRECTORY ${libtorch_root}/torch/lib DESTINATION ${troupe_libtorch_dir}/torch COMPONENT libtorch
      FILES_MATCHING PATTERN "*.so*" PATTERN "libtorch_python.so" EXCLUDE)
    if(IS_DIRECTORY ${libtorch_root}/nvidia)
      install(DIRECTORY ${libtorch_root}/nvidia DESTINATION ${troupe_libtorch_dir} COMPONENT libtorch
        FILES_MATCHING PATTERN "*.so*" PATTERN "include" EXCLUDE)
    endif()
  endif()
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT client)
