"""Describes and packs what `cmake --install` laid into a folder, for scripts/package: the same bits from the same files.

package.py describe PREFIX VERSION EPOCH   lays down licences, and a list of them in SPDX's format, and makes links files
package.py tarball FOLDER FILE EPOCH       packs a folder
"""

import datetime
import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

# Debian 12's packages whose libraries are copied, and those that are compiled in, each with its licence as SPDX names it.
LICENCES = {
    "libboost1.74-dev": "BSL-1.0",
    "libbsd0": "BSD-3-Clause AND BSD-2-Clause AND ISC AND MIT AND Beerware",
    "libcereal-dev": "BSD-3-Clause",
    "libcli11-dev": "BSD-3-Clause",
    "libcom-err2": "MIT",
    "cppzmq-dev": "MIT",
    "libebml5": "LGPL-2.1-or-later",
    "libedit2": "BSD-3-Clause",
    "libfmt-dev": "MIT",
    "libgssapi-krb5-2": "MIT",
    "libjpeg62-turbo": "IJG AND BSD-3-Clause AND Zlib",
    "libk5crypto3": "MIT",
    "libkeyutils1": "LGPL-2.0-or-later",
    "libkrb5-3": "MIT",
    "libkrb5support0": "MIT",
    "libmatroska7": "LGPL-2.1-or-later",
    "libmd0": "BSD-3-Clause AND BSD-2-Clause AND ISC AND Beerware",
    "libnorm1": "NRL",
    "libopenh264-7": "BSD-2-Clause",
    "libpcre2-8-0": "BSD-3-Clause",
    "libpgm-5.3-0": "LGPL-2.1-or-later",
    "libpng16-16": "libpng-2.0",
    "libsentencepiece0": "Apache-2.0",
    "libsodium23": "ISC",
    "libsqlite3-0": "blessing",
    "libssl3": "Apache-2.0",
    "libtinfo6": "X11-distribute-modifications-variant",
    "libutf8proc2": "MIT AND Unicode-DFS-2016",
    "libvpx7": "BSD-3-Clause",
    "libwebp7": "BSD-3-Clause",
    "libwebpdemux2": "BSD-3-Clause",
    "libxxhash-dev": "BSD-2-Clause",
    "libzmq5": "LGPL-3.0-or-later",
    "nlohmann-json3-dev": "MIT",
    "zlib1g": "Zlib",
}
COMPILED_IN = ["libboost1.74-dev", "libcereal-dev", "libcli11-dev", "cppzmq-dev", "libfmt-dev", "libxxhash-dev", "nlohmann-json3-dev"]
# LibTorch's wheels by the names of their dist-info.
WHEELS = {
    "torch": "BSD-3-Clause",
    "nvidia_cuda_runtime": "LicenseRef-NVIDIA-CUDA-Toolkit-EULA",
    "nvidia_cuda_cupti": "LicenseRef-NVIDIA-CUDA-Toolkit-EULA",
}


def fail(text: str) -> None:
    sys.exit(f"package: {text}")


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def packages_of(libraries: list) -> set:
    """The installed Debian packages that have these files."""
    owners = {library: set() for library in libraries}
    for line in ask("dpkg-query", "--search", *(f"*/{library}" for library in libraries)).splitlines():
        owner, path = line.split(": ", 1)
        owners[path.rsplit("/", 1)[1]].add(owner.split(":")[0])
    for library, found in owners.items():
        if not found & LICENCES.keys():
            fail(f"{library} is from {', '.join(sorted(found))}, whose licence is not in scripts/lib/package.py (packages are made on Debian 12)")
    return {owner for found in owners.values() for owner in found & LICENCES.keys()}


def package(name: str, version: str, licence: str) -> dict:
    """An entry of the list."""
    return {"SPDXID": "SPDXRef-" + name.replace("_", "-").replace("+", "-"), "name": name, "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": licence, "copyrightText": "NOASSERTION"}


def without_links(folder: pathlib.Path) -> None:
    """Makes each link in a folder the file that it leads to, and removes that: a wheel holds no links, and a library is asked for by one name."""
    targets = {link: link.resolve() for link in sorted(folder.iterdir()) if link.is_symlink()}
    for link, target in targets.items():
        link.unlink()
        shutil.copy2(target, link)
    for target in set(targets.values()):
        target.unlink()


def describe(prefix: pathlib.Path, version: str, epoch: int) -> None:
    libraries = prefix / "lib/troupe/libraries"
    without_links(libraries)
    documents = prefix / "share/doc/troupe"
    entries = [package("troupe", version, "Apache-2.0")]
    for name in sorted(packages_of([path.name for path in libraries.iterdir()]) | set(COMPILED_IN)):
        entries.append(package(name, ask("dpkg-query", "--show", "--showformat=${Version}", name), LICENCES[name]))
        into = documents / "licences" / name
        into.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"/usr/share/doc/{name}/copyright", into / "copyright")
    for info in sorted((prefix / "lib/troupe/libtorch").glob("*.dist-info")):
        name, of = info.name.removesuffix(".dist-info").split("-")
        if name not in WHEELS:
            fail(f"the licence of {name} is not in scripts/lib/package.py (LibTorch for CPUs travels, not that for GPUs)")
        entries.append(package(name, of, WHEELS[name]))
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"troupe-{version}",
        "documentNamespace": "https://spdx.org/spdxdocs/troupe-" + hashlib.sha256(json.dumps(entries).encode()).hexdigest(),
        "creationInfo": {"created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: scripts/package"]},
        "packages": entries,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-troupe"}] +
                         [{"spdxElementId": "SPDXRef-troupe", "relationshipType": "DEPENDS_ON", "relatedSpdxElement": entry["SPDXID"]}
                          for entry in entries[1:]],
    }
    for eula in sorted(prefix.glob("lib/troupe/libtorch/nvidia_cuda_runtime-*/licenses/License.txt")):
        document["hasExtractedLicensingInfos"] = [{
            "licenseId": "LicenseRef-NVIDIA-CUDA-Toolkit-EULA", "name": "NVIDIA CUDA Toolkit End User License Agreement",
            "extractedText": eula.read_text()}]
    (documents / "troupe.spdx.json").write_text(json.dumps(document, indent=1) + "\n")


def tarball(folder: pathlib.Path, file: pathlib.Path, epoch: int) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    unfinished = file.with_name(file.name + ".part")
    with open(unfinished, "wb") as plain_file, gzip.GzipFile("", "wb", 6, plain_file, mtime=epoch) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, folder.name, filter=plain)  # entries of a folder are in the order of their names
    unfinished.rename(file)


def main() -> None:
    verb, *rest = sys.argv[1:]
    if verb == "describe":
        describe(pathlib.Path(rest[0]), rest[1], int(rest[2]))
    else:
        tarball(pathlib.Path(rest[0]), pathlib.Path(rest[1]), int(rest[2]))


if __name__ == "__main__":
    main()
